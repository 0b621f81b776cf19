"""Log-probabilities of tokens, where vLLM has them."""

from offshoot._outputs import Logprob
from offshoot._vllm import FlatLogprobs

__all__ = ["Logprob", "FlatLogprobs"]
