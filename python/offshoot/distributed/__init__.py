"""What scripts call of vLLM's groups of processes. There are none here: ``LLM.close`` frees an engine's memory."""

from offshoot._vllm import nothing_to_end as cleanup_dist_env_and_memory
from offshoot._vllm import nothing_to_end as destroy_distributed_environment
from offshoot._vllm import nothing_to_end as destroy_model_parallel

__all__ = ["cleanup_dist_env_and_memory", "destroy_distributed_environment", "destroy_model_parallel"]
