"""What scripts take from vLLM that has no part in sampling here: arguments of its ``LLM``, by what becomes of them, and
classes and functions under vLLM's names. The modules of vLLM's names import them from here, so that there is one of
each, whatever name the package is imported by."""

from __future__ import annotations

import dataclasses
import enum
import uuid
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, overload

from offshoot._outputs import Logprob

if TYPE_CHECKING:
    from offshoot._llm import LLM, Tokenizer
    from offshoot._params import SamplingParams
    from offshoot._weights import WorkerView

#: Arguments of the LLM of vLLM 0.6 to 0.33 that change no sample: what they set is not here, or is done otherwise.
WITHOUT_MEANING = frozenset("""
    _api_process_count _api_process_rank additional_config aggregate_engine_logging all2all_backend
    allow_deprecated_quantization allowed_local_media_path allowed_media_domains api_server_count async_scheduling
    attention_backend attention_config aux_output_config block_size calculate_kv_scales code_revision
    collect_detailed_traces compilation_config config_format cp_kv_cache_interleave_size
    cpu_distributed_timeout_seconds cpu_offload_gb cpu_offload_params cuda_graph_sizes cudagraph_capture_sizes
    cudagraph_metrics custom_histogram_buckets data_parallel_address data_parallel_backend data_parallel_external_lb
    data_parallel_hybrid_lb data_parallel_multi_port_external_lb data_parallel_rank data_parallel_rpc_port
    data_parallel_size_local data_parallel_start_rank dbo_decode_token_threshold dbo_prefill_token_threshold
    dcp_comm_backend dcp_kv_cache_interleave_size dcp_q_replicate decode_context_parallel_size default_mm_loras
    disable_async_output_proc disable_cascade_attn disable_chunked_mm_input disable_custom_all_reduce
    disable_hybrid_kv_cache_manager disable_log_requests disable_log_stats disable_logprobs_during_spec_decoding
    disable_mm_preprocessor_cache disable_nccl_for_dp_synchronization distributed_executor_backend
    distributed_timeout_seconds download_dir dp_sync_interval ec_manager_config ec_transfer_config
    elastic_ep_max_dp_size enable_batch_sharded_sampling enable_chunked_prefill enable_cumem_allocator enable_dbo
    enable_elastic_ep enable_ep_weight_filter enable_eplb enable_expert_parallel enable_fault_tolerance
    enable_flashinfer_autotune enable_hc_sp enable_layerwise_nvtx_tracing enable_logging_iteration_details
    enable_lora_bias enable_mamba_cache_stochastic_rounding enable_mamba_shared_prefix_checkpoint enable_mfu_metrics
    enable_microbatching enable_mixed_moe_lora_format enable_mm_embeds enable_mm_processor_stats
    enable_moe_shared_loras enable_multimodal_encoder_data_parallel enable_nccl_comm_suspend enable_prefix_caching
    enable_prompt_adapter enable_prompt_embeds enable_reasoning enable_shm_tensor_arena
    enable_tower_connector_lora enable_trace_replay enforce_eager engram_config eplb_config eplb_log_balancedness
    eplb_step_interval eplb_window_size expert_placement_strategy fail_on_environ_validation fault_tolerance_config
    fully_sharded_loras gdn_prefill_backend guided_decoding_backend guided_decoding_disable_additional_properties
    guided_decoding_disable_any_whitespace guided_decoding_disable_fallback hf_token ignore_patterns
    interleave_mm_strings io_processor_plugin ir_op_priority jit_monitor_mode jit_monitor_verbose kda_decode_backend
    kda_prefill_backend kernel_config kv_cache_memory_bytes kv_cache_metrics kv_cache_metrics_sample kv_events_config
    kv_offloading_backend kv_offloading_size kv_sharing_fast_prefill kv_transfer_config language_model_only
    limit_mm_per_prompt linear_backend load_format log_config_file log_level logging_config long_lora_scaling_factors
    long_prefill_token_threshold long_prefill_token_threshold_adaptive lora_dtype lora_extra_vocab_size
    lora_target_modules mamba_backend mamba_block_size mamba_cache_dtype mamba_cache_mode mamba_cache_philox_rounds
    mamba_config mamba_ssm_cache_dtype mamba_ssu_algorithm master_addr master_port max_context_len_to_capture
    max_cpu_loras max_cudagraph_capture_size max_logprobs max_long_partial_prefills max_lora_cls_labels
    max_num_active_seqs max_num_batched_tokens max_num_partial_prefills max_num_queued_reqs
    max_num_queued_tokens max_num_scheduled_tokens max_parallel_loading_workers max_prompt_adapter_token
    max_prompt_adapters max_seq_len_to_capture media_io_kwargs mm_device_do_normalize mm_encoder_attn_backend
    mm_encoder_attn_dtype mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_margin mm_encoder_fp8_scale_save_path
    mm_encoder_only mm_encoder_tp_mode mm_hasher_algorithm mm_ipc_gpu_memory_gb mm_processor_cache_gb
    mm_processor_cache_type mm_processor_device mm_processor_kwargs mm_shm_cache_max_object_size_mb mm_tensor_ipc
    model_impl model_loader_extra_config moe_backend monokernel multi_step_stream_outputs ngram_prompt_lookup_max
    ngram_prompt_lookup_min nnodes node_rank num_gpu_blocks_override num_lookahead_slots num_redundant_experts
    num_scheduler_steps num_speculative_tokens numa_bind numa_bind_cpus numa_bind_nodes offload_backend
    offload_group_size offload_num_in_group offload_params offload_prefetch_step optimization_level
    otlp_traces_endpoint override_attention_dtype override_neuron_config per_request_spec_decode_metrics
    performance_mode preemption_mode prefill_context_parallel_size prefill_schedule_interval
    prefix_cache_retention_interval prefix_caching_hash_algo prefix_match_unit profiler_config pt_load_map_location
    quantization_param_path ray_workers_use_nsight reasoning_config reasoning_parser reasoning_parser_plugin
    renderer_num_workers replayssm_buffer_len revision safetensors_load_strategy safetensors_prefetch_block_size
    safetensors_prefetch_num_threads scheduler_cls scheduler_delay_factor scheduler_reserve_full_isl scheduling_policy
    served_model_name show_hidden_metrics_for_version shutdown_timeout skip_mm_profiling skip_tokenizer_init
    sleep_mode_backend sleep_mode_offload_cudagraph sleep_preserve_parameter_names sparse_indexer_topk_backend
    spec_decoding_acceptance_method spec_method spec_model spec_tokens specialize_active_lora speculative_config
    speculative_disable_by_batch_size speculative_disable_mqa_scorer speculative_draft_tensor_parallel_size
    speculative_max_model_len speculative_model speculative_model_quantization stream_interval
    structured_outputs_config swa_bounded_replay swap_space tokenizer_mode tokenizer_pool_extra_config
    tokenizer_pool_size tokenizer_pool_type tokenizer_revision tokens_only trust_remote_code
    typical_acceptance_sampler_posterior_alpha typical_acceptance_sampler_posterior_threshold ubatch_size
    use_fp64_gumbel use_replayssm use_tqdm_on_load use_v2_block_manager video_pruning_method video_pruning_rate
    watchdog_config watermark weight_transfer_config worker_cls worker_extension_cls worker_use_ray
""".split())

#: Arguments of vLLM's LLM that would change the samples or their results: refused if they ask for something.
WOULD_CHANGE = frozenset("""
    device_ids diffusion_config disable_sliding_window hf_config_path hf_overrides
    kv_cache_dtype_skip_layers logits_processor_pattern logits_processors model_class_overrides model_weights
    override_pooler_config pooler_config qlora_adapter_name_or_path quantization_config
    rope_scaling rope_theta watermark_config
""".split())

#: Ways of loading, by vLLM's `load_format`, that give other weights than the folder's.
OTHER_WEIGHTS = ("dummy", "bitsandbytes")


def asks(value: Any) -> bool:
    """Whether the value of an argument asks for something, as None, False and what is empty do not. A 0 does."""
    if value is None or value is False:
        return False
    return len(value) > 0 if hasattr(value, "__len__") else True


class RequestOutputKind(enum.Enum):
    """What vLLM's engine returns while it samples. Here ``generate`` returns whole samples, ``stream`` new tokens."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclasses.dataclass(eq=False)
class LoRARequest:
    """An adapter (LoRA), by a name, a number from 1 up, and the folder that it is read from when it is used first.
    Requests are equal if their names are."""

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    load_inplace: bool = False
    is_3d_lora_weight: bool = False

    def __post_init__(self) -> None:
        if not self.lora_name or not self.lora_path:
            raise ValueError(f"lora_name and lora_path: expected texts that are not empty, found {self.lora_name!r} "
                             f"and {self.lora_path!r}")
        if self.lora_int_id < 1:
            raise ValueError(f"lora_int_id: expected a number from 1 up, found {self.lora_int_id}")
        if self.is_3d_lora_weight:
            raise NotImplementedError("is_3d_lora_weight is not supported: adapters of experts are not")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoRARequest) and self.lora_name == other.lora_name

    def __hash__(self) -> int:
        return hash(self.lora_name)

    @property
    def adapter_id(self) -> int:
        return self.lora_int_id

    @property
    def name(self) -> str:
        return self.lora_name

    @property
    def path(self) -> str:
        return self.lora_path


def nothing_to_end(*_: Any, **__: Any) -> None:
    """Ends nothing: an engine has no groups of processes. ``LLM.close`` frees its memory."""


def random_uuid() -> str:
    """A name that no other has: 16 hexadecimal digits."""
    return uuid.uuid4().hex[:16]


@dataclasses.dataclass
class FlatLogprobs(Sequence[dict[int, Logprob]]):
    """The log-probabilities of a sample's tokens, or of a prompt's, in a few lists for all places together. It reads
    like the list of dicts that it stands for: place ``i`` has the entries from ``start_indices[i]`` up to
    ``end_indices[i]``."""

    start_indices: list[int] = dataclasses.field(default_factory=list)
    end_indices: list[int] = dataclasses.field(default_factory=list)
    token_ids: list[int] = dataclasses.field(default_factory=list)
    logprobs: list[float] = dataclasses.field(default_factory=list)
    ranks: list[int | None] = dataclasses.field(default_factory=list)
    decoded_tokens: list[str | None] = dataclasses.field(default_factory=list)

    @classmethod
    def of(cls, rows: Iterable[dict[int, Logprob] | None]) -> "FlatLogprobs":
        flat = cls()
        flat.extend(rows)
        return flat

    def append(self, row: dict[int, Logprob] | None) -> None:
        """Adds a place; None, of a prompt's first token, has no entries."""
        self.start_indices.append(len(self.token_ids))
        for token, entry in (row or {}).items():
            self.token_ids.append(token)
            self.logprobs.append(entry.logprob)
            self.ranks.append(entry.rank)
            self.decoded_tokens.append(entry.decoded_token)
        self.end_indices.append(len(self.token_ids))

    def extend(self, rows: Iterable[dict[int, Logprob] | None]) -> None:
        for row in rows:
            self.append(row)

    def __len__(self) -> int:
        return len(self.start_indices)

    @overload
    def __getitem__(self, at: int) -> dict[int, Logprob]: ...
    @overload
    def __getitem__(self, at: slice) -> "FlatLogprobs": ...
    def __getitem__(self, at: int | slice) -> "dict[int, Logprob] | FlatLogprobs":
        if isinstance(at, slice):
            return FlatLogprobs.of(self[place] for place in range(*at.indices(len(self))))
        entries = range(self.start_indices[at], self.end_indices[at])
        return {self.token_ids[entry]: Logprob(self.logprobs[entry], self.ranks[entry], self.decoded_tokens[entry])
                for entry in entries}

    def __iter__(self) -> Iterator[dict[int, Logprob]]:
        return (self[at] for at in range(len(self)))


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """What scripts read of vLLM's object of this name."""

    model: str
    tokenizer: str
    max_model_len: int
    seed: int
    _vocab_size: int = dataclasses.field(repr=False)
    _defaults: dict[str, Any] = dataclasses.field(repr=False)

    def get_vocab_size(self) -> int:
        return self._vocab_size

    def get_diff_sampling_param(self) -> dict[str, Any]:
        """The fields of ``SamplingParams`` for which the model's generation_config.json has values."""
        return dict(self._defaults)


@dataclasses.dataclass(frozen=True)
class EngineView:
    """An ``LLM`` as scripts see vLLM's engine behind it."""

    _llm: LLM = dataclasses.field(repr=False)

    @property
    def model_config(self) -> ModelConfig:
        return self._llm.model_config

    @property
    def vllm_config(self) -> "EngineView":
        """The same: it has ``model_config``, too."""
        return self

    @property
    def tokenizer(self) -> Tokenizer:
        return self._llm.tokenizer

    def get_tokenizer(self) -> Tokenizer:
        return self._llm.tokenizer

    def get_model_config(self) -> ModelConfig:
        return self._llm.model_config

    def reset_prefix_cache(self) -> bool:
        return self._llm.reset_prefix_cache()

    def add_lora(self, lora_request: LoRARequest) -> bool:
        """Loads an adapter before a request needs it."""
        self._llm._adapters.add(lora_request)
        return True

    def remove_lora(self, lora_id: int) -> bool:
        """Removes an adapter that came with a request, by its number; False if there is none."""
        return self._llm._adapters.remove(lora_id)

    def list_loras(self) -> set[int]:
        """The numbers of the adapters that came with requests and are loaded."""
        return self._llm._adapters.numbers()

    @property
    def model_executor(self) -> "WorkerView":
        """The way to ``load_weights`` that trainers go."""
        from offshoot._weights import WorkerView

        return WorkerView(self._llm)
