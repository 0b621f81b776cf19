"""What a generation returns, with the fields of vLLM's ``RequestOutput`` and ``CompletionOutput``, and as Arrow
tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from offshoot._facts import FinishReason

if TYPE_CHECKING:
    import numpy
    import pyarrow as pa

    from offshoot._vllm import FlatLogprobs, LoRARequest


@dataclasses.dataclass(slots=True)
class Logprob:
    """The log-probability of a token, and its place among all of them, from 1: the likeliest."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


@dataclasses.dataclass(slots=True)
class KeptTokens:
    """The sets that a sample's tokens were drawn from: what bans, ``top_k``, ``top_p`` and ``min_p`` leave of the
    vocabulary. Each list has an entry for each of ``token_ids``. ``counts``: how many tokens. ``lowest``: their
    smallest score, of logits after bias and penalties and before the temperature; without these, and up to ties, the
    set is all tokens whose logit is at least this. ``ids``: with ``return_kept="ids"``, rising; None for sets of more
    than 1,024. ``masks``: with ``return_kept="mask"``, as bytes of a bit set (bit ``id % 8``, from the lowest, of byte
    ``id // 8``, up to the last one that is set); None where ``ids`` would be."""

    counts: list[int]
    lowest: list[float]
    ids: list[list[int] | None] | None = None
    masks: list[bytes | None] | None = None


@dataclasses.dataclass(slots=True)
class SamplingMask:
    """The ids of ``KeptTokens`` under vLLM's name."""

    token_ids: list[list[int]]


@dataclasses.dataclass(slots=True)
class CompletionOutput:
    """One sample of a prompt. ``token_ids`` ends with the end-of-text or stop token that ended it, as in vLLM, and so
    do ``logprobs``, ``kept``, ``entropies`` and ``confidences``. ``kept``: with ``SamplingParams.return_kept``.
    ``entropies``: with ``return_entropy``, of the model's own distribution in each token's place, in nats.
    ``confidences``: with ``return_confidence=k``, minus the mean log-probability of its k likeliest tokens there.
    ``routed_experts``: of an
    ``LLM`` with ``enable_return_routed_experts``, the experts chosen for each token but the last, the prompt's from
    ``routed_experts_prompt_start`` on included: tokens x layers x experts of a token, the likeliest first, uint8 or
    uint16; zeros in layers without experts. ``weights``: the versions of the weights that the tokens were sampled
    under, each with the number of its first token; ``adapters`` likewise: the versions of its adapter.
    ``lora_request``: the adapter that was asked for. ``forced``: of a sample with a form, whether the form allowed no
    other token in each one's place; such a token was not drawn, and its processed log-probability is 0."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None
    logprobs: list[dict[int, Logprob]] | FlatLogprobs | None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    lora_request: LoRARequest | None = None
    kept: KeptTokens | None = None
    entropies: list[float] | None = None
    confidences: list[float] | None = None
    forced: list[bool] | None = None
    routed_experts: numpy.ndarray[Any, Any] | None = dataclasses.field(default=None, compare=False)
    #: Whether it was a straggler that was finished later (``LLM.finish``).
    continued: bool = False
    weights: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    adapters: list[tuple[int, int]] = dataclasses.field(default_factory=list)

    @property
    def weight_versions(self) -> list[int]:
        """The version of the weights that each token was sampled under."""
        ends = [begin for _, begin in self.weights[1:]] + [len(self.token_ids)]
        return [version for (version, begin), end in zip(self.weights, ends) for _ in range(begin, end)]

    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def sampling_mask(self) -> SamplingMask | None:
        """The ids of the sets, as vLLM has them; None where ``kept`` does not have them all."""
        ids = self.kept.ids if self.kept is not None else None
        listed = [each for each in ids or () if each is not None]
        return SamplingMask(listed) if ids is not None and len(listed) == len(ids) else None


@dataclasses.dataclass(frozen=True, slots=True)
class ChatBegin:
    """How an answer to a chat's prompt begins: the template that wrote the prompt, and the text with which the prompt
    has begun the answer, if it has."""

    template: str | None
    begun: str | None


@dataclasses.dataclass(slots=True)
class RequestOutput:
    """The samples of one prompt, by index. ``lora_request``: its adapter. What only vLLM fills is always None:
    ``metrics``, the encoder's prompt and ``num_cached_tokens``."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | FlatLogprobs | None
    outputs: list[CompletionOutput]
    finished: bool
    metrics: None = None
    lora_request: LoRARequest | None = None
    encoder_prompt: str | None = None
    encoder_prompt_token_ids: list[int] | None = None
    num_cached_tokens: int | None = None
    #: The generation that keeps the samples which ``min_finished`` of ``LLM.generate`` cut short, and its prompt there.
    _kept: tuple[Any, int] | None = dataclasses.field(default=None, repr=False, compare=False)
    #: Of a chat: how an answer to its prompt begins.
    _chat: ChatBegin | None = dataclasses.field(default=None, repr=False, compare=False)


@dataclasses.dataclass(slots=True)
class StreamOutput:
    """New tokens of a sample, or its end. ``output``: the whole sample, once it has ended."""

    prompt_index: int
    index: int
    text: str
    token_ids: list[int]
    logprobs: list[float]
    output: CompletionOutput | None = None

    @property
    def finish_reason(self) -> FinishReason | None:
        return self.output.finish_reason if self.output else None


@dataclasses.dataclass(slots=True)
class ChoiceScore:
    """The log-probability of a continuation of a context, and of each of its tokens. ``is_greedy``: whether greedy
    sampling would have given it."""

    text: str | None
    token_ids: list[int]
    logprob: float
    logprobs: list[float]
    is_greedy: bool


@dataclasses.dataclass(slots=True)
class ScoredChoices:
    """The continuations of one context."""

    prompt: str | None
    prompt_token_ids: list[int]
    choices: list[ChoiceScore]

    @property
    def best(self) -> int:
        """The index of the likeliest continuation."""
        return max(range(len(self.choices)), key=lambda at: self.choices[at].logprob)

    @property
    def probabilities(self) -> list[float]:
        """The continuations' probabilities relative to each other."""
        import math

        most = max(choice.logprob for choice in self.choices)
        shares = [math.exp(choice.logprob - most) for choice in self.choices]
        return [share / sum(shares) for share in shares]


def token_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[float], ranks: Sequence[int | None],
    tops: Sequence[Sequence[tuple[int, float]]], texts: Callable[[list[int]], list[str]],
) -> list[dict[int, Logprob]]:
    """vLLM's form: for each token a dict of itself, which comes first, and the likeliest, by id. ``texts``: a function
    of token ids."""
    rows = []
    for at, (token, logprob) in enumerate(zip(token_ids, logprobs)):
        top: Sequence[tuple[int, float]] = tops[at] if at < len(tops) else ()
        row = {token: Logprob(logprob, ranks[at])}
        row.update((other, Logprob(value, rank)) for rank, (other, value) in enumerate(top, 1) if other != token)
        rows.append(row)
    ids = [token for row in rows for token in row]
    decoded = iter(texts(ids))
    for row in rows:
        for entry in row.values():
            entry.decoded_token = next(decoded)
    return rows


def to_arrow(outputs: Sequence[RequestOutput]) -> pa.Table:
    """The samples as a ``pyarrow.Table``, one row a sample. Needs pyarrow; ``.to_pandas()`` of the table needs
    pandas."""
    import pyarrow as pa

    rows = [(request, output) for request in outputs for output in request.outputs]
    stop = [None if output.stop_reason is None else str(output.stop_reason) for _, output in rows]
    return pa.table({
        "request_id": pa.array([request.request_id for request, _ in rows], pa.string()),
        "prompt": pa.array([request.prompt for request, _ in rows], pa.string()),
        "prompt_tokens": pa.array([len(request.prompt_token_ids) for request, _ in rows], pa.int32()),
        "index": pa.array([output.index for _, output in rows], pa.int32()),
        "text": pa.array([output.text for _, output in rows], pa.string()),
        "token_ids": pa.array([output.token_ids for _, output in rows], pa.list_(pa.uint32())),
        "cumulative_logprob": pa.array([output.cumulative_logprob for _, output in rows], pa.float64()),
        "finish_reason": pa.array([output.finish_reason for _, output in rows], pa.string()),
        "stop_reason": pa.array(stop, pa.string()),
    })
