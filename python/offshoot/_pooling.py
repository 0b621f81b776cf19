"""What models of values take and return under vLLM's names: ``PoolingParams`` and the outputs of ``encode``,
``classify``, ``embed`` and ``score``. The fields are those of vLLM 0.33; data are numpy arrays where vLLM has
tensors."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from offshoot._params import _choice, _flag, _number, _whole

if TYPE_CHECKING:
    import numpy

_Output = TypeVar("_Output")


@dataclasses.dataclass(slots=True)
class PoolingParams:
    """What becomes of the values. ``use_activation``: whether they become probabilities, or a vector one of length 1;
    by default the model says. ``task``: classify, token_classify or embed. What asks for other numbers than the model
    has is refused."""

    use_activation: bool | None = None
    dimensions: int | None = None
    step_tag_id: int | None = None
    returned_token_ids: list[int] | None = None
    task: str | None = None

    def fields(self, task: str | None) -> dict[str, Any]:
        """A request's fields. ``task``: that of the call."""
        for name in ("dimensions", "step_tag_id", "returned_token_ids"):
            if (found := getattr(self, name)) is not None:
                raise NotImplementedError(f"{name}: expected None, as the model's own form says, found {found!r}")
        if self.task is not None and task is not None and self.task != task:
            raise ValueError(f"pooling_params.task: expected {task}, as the call says, found {self.task!r}")
        body: dict[str, Any] = {}
        if self.use_activation is not None:
            body["use_activation"] = _flag("use_activation", self.use_activation)
        if (asked := task or self.task) is not None:
            body["task"] = asked
        return body


@dataclasses.dataclass(slots=True)
class PoolingOutput:
    """``data``: the numbers of the prompt, or a row of them for each token or step that has some."""

    data: numpy.ndarray[Any, Any]

    @classmethod
    def of(cls, data: list[Any]) -> "PoolingOutput":
        import numpy

        return cls(numpy.array(data, dtype=numpy.float32))


@dataclasses.dataclass(slots=True)
class ClassificationOutput:
    """``probs``: a number for each class."""

    probs: list[float]

    @property
    def num_classes(self) -> int:
        return len(self.probs)


@dataclasses.dataclass(slots=True)
class EmbeddingOutput:
    """``embedding``: the vector of the prompt."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        return len(self.embedding)


@dataclasses.dataclass(slots=True)
class ScoringOutput:
    """``score``: of a pair."""

    score: float


@dataclasses.dataclass(slots=True)
class _PooledRequest(Generic[_Output]):
    request_id: str
    outputs: _Output
    prompt_token_ids: list[int]
    num_cached_tokens: int = 0
    finished: bool = True
    error: None = None


class PoolingRequestOutput(_PooledRequest[PoolingOutput]):
    """What ``encode`` and ``reward`` return for a prompt."""


class ClassificationRequestOutput(_PooledRequest[ClassificationOutput]):
    """What ``classify`` returns for a prompt."""


class EmbeddingRequestOutput(_PooledRequest[EmbeddingOutput]):
    """What ``embed`` returns for a prompt."""


class ScoringRequestOutput(_PooledRequest[ScoringOutput]):
    """What ``score`` returns for a pair."""


def of_prompts(
    prompts: Any, params: PoolingParams | Sequence[PoolingParams] | None,
) -> Iterator[tuple[list[Any], PoolingParams]]:
    """Prompts as a request's `input` has them, with their parameters: those of one kind and of equal parameters
    together, in their order."""
    from offshoot._llm import _is_one, _several

    listed = [prompts] if _is_one(prompts) else _several(prompts)
    each = list(params) if isinstance(params, (list, tuple)) else [params] * len(listed)
    if len(each) != len(listed):
        raise ValueError(f"pooling_params: expected {len(listed)}, one for each prompt, found {len(each)}")
    together: list[Any] = []
    last: tuple[type, PoolingParams] | None = None
    for prompt, given in zip(listed, each):
        own = PoolingParams() if given is None else given
        if not isinstance(own, PoolingParams):
            raise TypeError(f"pooling_params: expected PoolingParams, found {own!r}")
        if isinstance(prompt, dict):
            ids = prompt.get("prompt_token_ids")
            prompt = prompt.get("prompt") if ids is None else ids
        prompt = prompt if isinstance(prompt, str) else [int(token) for token in prompt]
        kind = (type(prompt), own)
        if last is not None and kind != last:
            yield together, last[1]
            together = []
        last = kind
        together.append(prompt)
    if last is not None:
        yield together, last[1]


#: What ``tokenization_kwargs`` may have: fields of requests.
_TOKENIZATION = ("add_special_tokens", "truncate_prompt_tokens", "truncation_side")


def pooled(
    native: Any, endpoint: str, prompts: Any, params: PoolingParams | Sequence[PoolingParams] | None,
    task: str | None, tokenization: Mapping[str, Any] | None = None, lora_request: Any = None,
) -> Iterator[tuple[list[int], dict[str, Any]]]:
    """The tokens of each prompt and its entry in what ``native`` answers at a server's path."""
    if lora_request is not None:
        expected = "None, as adapters change what is sampled"
        raise NotImplementedError(f"lora_request: expected {expected}, found {lora_request!r}")
    tokenization = {} if tokenization is None else dict(tokenization)
    if unknown := sorted(set(tokenization) - set(_TOKENIZATION)):
        raise NotImplementedError(f"tokenization_kwargs: expected {', '.join(_TOKENIZATION)}, found {unknown[0]!r}")
    for listed, parameter in of_prompts(prompts, params):
        body = {**tokenization, **parameter.fields(task), "input": listed}
        ids, answer = native.answer(endpoint, json.dumps(body))
        yield from zip(ids, json.loads(answer)["data"])


def scored_pairs(native: Any, data_1: Any, data_2: Any, params: PoolingParams | None) -> list[ScoringRequestOutput]:
    """The scores of pairs, as ``native`` answers at ``/score``."""
    body: dict[str, Any] = {"text_1": data_1, "text_2": data_2}
    if params is not None and params.use_activation is not None:
        body["use_activation"] = params.use_activation
    ids, answer = native.answer("/score", json.dumps(body))
    return [ScoringRequestOutput(str(index), ScoringOutput(entry["score"]), tokens)
            for index, (tokens, entry) in enumerate(zip(ids, json.loads(answer)["data"]))]


def opened(
    native: Any, model: str | os.PathLike[str], *, device: str, weights: str | None, memory: float | None,
    gpu_memory_utilization: float | None, kv_memory: int | None, max_model_len: int | None, max_num_seqs: int | None,
    deterministic: bool, threads: int | None, **more: Any,
) -> Any:
    """A model of values, opened as the class ``native`` by arguments that are checked."""
    for name, share in (("memory", memory), ("gpu_memory_utilization", gpu_memory_utilization)):
        if share is not None and not 0.0 < _number(name, share) <= 1.0:
            raise ValueError(f"{name}: expected a number above 0 and up to 1, found {share}")

    def whole(name: str, value: int | None) -> int | None:
        return None if value is None else _whole(name, value, 1)

    return native(
        os.fspath(model), device=str(device),
        weights=None if weights is None else _choice("weights", weights, ("fp8", "int8", "int4")), memory=memory,
        gpu_memory=gpu_memory_utilization, kv_memory=whole("kv_memory", kv_memory),
        max_branches=whole("max_num_seqs", max_num_seqs), context=whole("max_model_len", max_model_len),
        deterministic=bool(deterministic), threads=whole("threads", threads), **more)
