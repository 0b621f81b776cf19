"""What a scorer returns under vLLM's names: ``PoolingParams`` and the outputs of ``encode``, ``classify`` and
``score``. The fields are those of vLLM 0.33; data are numpy arrays where vLLM has tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from offshoot._params import _flag

if TYPE_CHECKING:
    import numpy

_Output = TypeVar("_Output")


@dataclasses.dataclass(slots=True)
class PoolingParams:
    """What becomes of the values. ``use_activation``: whether they become probabilities; by default the model says.
    ``task``: classify or token_classify. What asks for other numbers than the model has is refused."""

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
