"""Adapters, where vLLM has them; none are supported."""
