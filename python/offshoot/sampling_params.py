"""Parameters of sampling and of beam search, where vLLM has them."""

from offshoot._beams import BeamSearchParams
from offshoot._params import SamplingParams

__all__ = ["SamplingParams", "BeamSearchParams"]
