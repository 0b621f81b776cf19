"""What ``LLM.facts`` and ``Node.facts`` hold."""

from __future__ import annotations

from typing import Literal, TypedDict


class EngineFacts(TypedDict):
    """What never changes of an engine."""

    context: int
    vocab: int
    bos: int | None
    eos: list[int]
    device: str
    exact: bool
    page_tokens: int
    kv_bytes_per_token: int
    kv_bytes: int
    max_branches: int
    replicas: int
    not_cuda: str | None
    seconds_loading: float


class NodeFacts(TypedDict):
    """How a node stands."""

    finish_reason: Literal["stop", "length", "abort", "error"] | None
    stop_reason: int | str | None
    logprob: float
    score: float | None
    state: Literal["open", "closed", "pruned"]
    error: str | None
