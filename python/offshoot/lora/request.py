"""The request of an adapter, where vLLM has it: scripts import it, whether they use adapters or not."""

from offshoot._vllm import LoRARequest

__all__ = ["LoRARequest"]
