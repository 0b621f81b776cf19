"""``LLM`` of a model that scores texts or makes vectors of them: it has vLLM's methods for pooling models, and refuses
those that sample."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn, cast

from offshoot._llm import LLM, Tokenizer
from offshoot._native import NativeEmbedder
from offshoot._params import _whole
from offshoot._pooling import (
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    ScoringRequestOutput,
    opened,
    pooled,
    scored_pairs,
)
from offshoot._scorer import Scorer, open_pooling
from offshoot._vllm import WITHOUT_MEANING

RUNNERS = ("auto", "pooling")

#: Arguments of ``LLM`` that change no value.
_IGNORED = WITHOUT_MEANING | frozenset(
    ["dtype", "enable_sleep_mode", "generation_config", "override_generation_config", "seed", "swap_memory"])


class PoolingLLM(LLM):
    """An ``LLM`` whose model scores texts: ``encode``, ``classify``, ``score``, ``reward``. ``form``: as of
    ``Scorer``, which ``scorer`` is."""

    #: What vLLM calls the work of such a model.
    TASKS: ClassVar[tuple[str, ...]] = ("auto", "classify", "token_classify", "reward", "score")
    CONVERSIONS: ClassVar[tuple[str, ...]] = ("auto", "none", "classify", "reward")
    #: What it does, and by which methods.
    DOES: ClassVar[str] = "scores texts"
    HAS: ClassVar[str] = "encode, classify, score and reward"

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        form: str | Mapping[str, Any] | None = None,
        device: str = "auto",
        weights: str | None = None,
        memory: float | None = None,
        gpu_memory_utilization: float | None = None,
        kv_memory: int | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        deterministic: bool = False,
        threads: int | None = None,
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        data_parallel_size: int = 1,
        runner: str | None = "auto",
        convert: str | None = "auto",
        task: str | None = "auto",
        **more: Any,
    ):
        for name, count in (
            ("tensor_parallel_size", tensor_parallel_size), ("pipeline_parallel_size", pipeline_parallel_size),
            ("data_parallel_size", data_parallel_size),
        ):
            if _whole(name, count, 1) != 1:
                raise NotImplementedError(f"{name}: expected 1 for a model that {self.DOES}, found {count}")
        for name, found, meant in (
            ("runner", runner, RUNNERS), ("task", task, self.TASKS), ("convert", convert, self.CONVERSIONS),
        ):
            if found is not None and found not in meant:
                raise NotImplementedError(
                    f"{name}: expected {' or '.join(meant)}, as the model {self.DOES}, found {found!r}")
        if unknown := sorted(set(more) - _IGNORED):
            raise TypeError(f"LLM: there is no argument {unknown[0]!r} of a model that {self.DOES}")
        if ignored := sorted(set(more) & WITHOUT_MEANING):
            warnings.warn(f"without a meaning in Offshoot, ignored: {', '.join(ignored)}", stacklevel=2)
        self._open(model, form, {
            "device": device, "weights": weights, "memory": memory, "gpu_memory_utilization": gpu_memory_utilization,
            "kv_memory": kv_memory, "max_model_len": max_model_len, "max_num_seqs": max_num_seqs,
            "deterministic": deterministic, "threads": threads})
        self.max_model_len = self.facts["context"]
        self.seed = 0

    def _open(
        self, model: str | os.PathLike[str], form: str | Mapping[str, Any] | None, options: dict[str, Any],
    ) -> None:
        self._scorer = self.scorer = Scorer(model, form, **options)
        self.model, self.tokenizer = self._scorer.model, self._scorer.tokenizer

    def __repr__(self) -> str:
        return f"LLM({self.model!r}, device={self.facts['device']!r})"

    def close(self) -> None:
        self._scorer.close()

    @property
    def facts(self) -> Any:
        return self._scorer.facts

    def metrics(self) -> Any:
        return self._scorer.metrics()

    def encode(self, prompts: Any, *given: Any, **more: Any) -> list[PoolingRequestOutput]:  # type: ignore[override]
        if not more.get("pooling_task") and not (given or more.get("pooling_params")):
            raise ValueError("pooling_task: expected classify or token_classify, found None")
        return self._scorer.encode(prompts, *given, **more)

    def reward(self, prompts: Any, /, **more: Any) -> list[PoolingRequestOutput]:
        return self._scorer.reward(prompts, **more)

    def classify(self, prompts: Any, **more: Any) -> list[ClassificationRequestOutput]:
        return self._scorer.classify(prompts, **more)

    def score(  # type: ignore[override]
        self, data_1: Any, data_2: Any, /, *, use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None, lora_request: None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None, chat_template: None = None,
    ) -> list[ScoringRequestOutput]:
        return self._scorer.pairs(data_1, data_2, pooling_params=pooling_params)

    def embed(self, prompts: Any, **_: Any) -> list[EmbeddingRequestOutput]:
        raise ValueError(f"LLM.embed: {self.model} {self.DOES} and makes no vectors of them; it has {self.HAS}")


def _refused(name: str) -> Any:
    def refuse(self: PoolingLLM, *_: Any, **__: Any) -> NoReturn:
        raise ValueError(f"LLM.{name}: {self.model} {self.DOES} and samples none; it has {self.HAS}")

    refuse.__name__ = name
    return refuse


#: Methods of a model that samples.
SAMPLING: Sequence[str] = (
    "generate", "chat", "stream", "astream", "agenerate", "generate_table", "rescore", "beam_search", "tree", "finish",
    "load_weights", "load_adapter", "unload_adapter", "sleep", "wake_up", "reset_prefix_cache",
)
for _name in SAMPLING:
    if hasattr(LLM, _name):
        setattr(PoolingLLM, _name, _refused(_name))


class EmbeddingLLM(PoolingLLM):
    """An ``LLM`` whose model makes vectors of texts: ``embed``, ``encode``, and ``score`` by the cosine of vectors."""

    TASKS = ("auto", "embed")
    CONVERSIONS = ("auto", "none", "embed")
    DOES = "makes vectors of texts"
    HAS = "embed, encode and score"

    def _open(
        self, model: str | os.PathLike[str], form: str | Mapping[str, Any] | None, options: dict[str, Any],
    ) -> None:
        if form is not None:
            raise ValueError(f"form: expected None, as the model {self.DOES}, found {form!r}")
        self._native = opened(NativeEmbedder, model, **options)
        self._of_engine: dict[str, Any] = self._native.facts()
        self.scorer = None
        self.model, self.tokenizer = os.fspath(model), Tokenizer(self._native.tokenizer, cast(Any, self._of_engine))
        open_pooling.add(self)

    def close(self) -> None:
        self._native.close()

    @property
    def facts(self) -> Any:
        return self._of_engine.copy()

    def metrics(self) -> Any:
        return json.loads(self._native.metrics())

    def embed(  # type: ignore[override]
        self, prompts: Any, *, use_tqdm: bool = True,
        pooling_params: PoolingParams | Sequence[PoolingParams] | None = None, lora_request: None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[EmbeddingRequestOutput]:
        """The vector of each prompt, as vLLM's ``LLM.embed``: ``outputs.embedding``."""
        answers = pooled(
            self._native, "/pooling", prompts, pooling_params, "embed", tokenization_kwargs, lora_request)
        return [EmbeddingRequestOutput(str(index), EmbeddingOutput(entry["data"]), ids)
                for index, (ids, entry) in enumerate(answers)]

    def encode(  # type: ignore[override]
        self, prompts: Any, pooling_params: PoolingParams | Sequence[PoolingParams] | None = None, *,
        use_tqdm: bool = True, lora_request: None = None, pooling_task: str | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PoolingRequestOutput]:
        """The same as ``outputs.data``, with ``pooling_task`` embed."""
        task = pooling_task or getattr(pooling_params, "task", None)
        if task != "embed":
            raise ValueError(f"pooling_task: expected embed, found {task!r}")
        answers = pooled(self._native, "/pooling", prompts, pooling_params, task, tokenization_kwargs, lora_request)
        return [PoolingRequestOutput(str(index), PoolingOutput.of(entry["data"]), ids)
                for index, (ids, entry) in enumerate(answers)]

    def score(  # type: ignore[override]
        self, data_1: Any, data_2: Any, /, *, use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None, lora_request: None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None, chat_template: None = None,
    ) -> list[ScoringRequestOutput]:
        return scored_pairs(self._native, data_1, data_2, pooling_params)

    def classify(self, prompts: Any, **_: Any) -> NoReturn:
        self._has_no_classes("classify")

    def reward(self, prompts: Any, /, **_: Any) -> NoReturn:
        self._has_no_classes("reward")

    def _has_no_classes(self, method: str) -> NoReturn:
        raise ValueError(f"LLM.{method}: {self.model} {self.DOES} and has no classes; it has {self.HAS}")
