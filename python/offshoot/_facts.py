"""What ``LLM.facts``, ``LLM.metrics()`` and ``Node.facts`` hold."""

from __future__ import annotations

from typing import Literal, TypedDict


class EngineFacts(TypedDict):
    """What never changes of an engine."""

    context: int
    vocab: int
    bos: int | None
    eos: list[int]
    device: str
    batch_invariant: bool
    page_tokens: int
    kv_bytes_per_token: int
    kv_bytes: int
    max_branches: int
    replicas: int
    not_cuda: str | None
    seconds_loading: float


class PageCounts(TypedDict):
    """Pages of keys and values, now."""

    total: int
    held: int
    pinned: int
    cached: int
    free: int


class EngineMetrics(TypedDict):
    """Counters since an engine started; what ends in ``held`` or ``cached``, and the last four, are those of now."""

    steps: int
    steps_replanned: int
    rows: int
    prompt_tokens_logical: int
    prompt_tokens_computed: int
    scores_reused: int
    prompt_tokens_stored: int
    prompt_tokens_copied: int
    chunks_written: int
    tokens_sampled: int
    tokens_discarded: int
    tokens_recomputed: int
    kv_bytes_read: int
    kv_bytes_read_flat: int
    kv_bytes_held: int
    kv_bytes_cached: int
    kv_bytes_peak: int
    kv_tokens_peak: int
    kv_bytes_peak_unshared: int
    states_held: int
    states_peak: int
    preemptions: int
    swapped_out: int
    swapped_out_bytes: int
    swapped_in: int
    swapped_in_bytes: int
    seconds_scheduling: float
    seconds_planning: float
    seconds_forward: float
    seconds_idle: float | None
    seconds_waiting: float
    seconds_committing: float
    running: int
    waiting: int
    branches: int
    pages: PageCounts


class NodeFacts(TypedDict):
    """How a node stands."""

    finish_reason: Literal["stop", "length", "abort", "error"] | None
    stop_reason: int | str | None
    logprob: float
    score: float | None
    state: Literal["open", "closed", "pruned"]
    error: str | None
