"""What generations return, where vLLM has it."""

from offshoot._beams import BeamSearchOutput, BeamSearchSequence
from offshoot._outputs import CompletionOutput, KeptTokens, Logprob, RequestOutput, SamplingMask

__all__ = ["RequestOutput", "CompletionOutput", "KeptTokens", "SamplingMask", "Logprob", "BeamSearchOutput",
           "BeamSearchSequence"]
