"""What scripts take from vLLM's module of this name."""

from offshoot._vllm import random_uuid

__all__ = ["random_uuid"]
