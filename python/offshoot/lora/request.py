"""The request of an adapter, where vLLM has it."""

from offshoot._vllm import LoRARequest

__all__ = ["LoRARequest"]
