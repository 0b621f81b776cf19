"""Parameters of sampling and of beam search, where vLLM has them."""

from offshoot._beams import BeamSearchParams
from offshoot._forms import GuidedDecodingParams, StructuredOutputsParams
from offshoot._params import SamplingParams
from offshoot._vllm import RequestOutputKind

__all__ = ["SamplingParams", "BeamSearchParams", "RequestOutputKind", "StructuredOutputsParams", "GuidedDecodingParams"]
