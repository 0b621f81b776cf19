"""What generations return, where vLLM has it."""

from offshoot._beams import BeamSearchOutput, BeamSearchSequence
from offshoot._outputs import CompletionOutput, Logprob, RequestOutput

__all__ = ["RequestOutput", "CompletionOutput", "Logprob", "BeamSearchOutput", "BeamSearchSequence"]
