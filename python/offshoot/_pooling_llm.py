"""``LLM`` of a model that scores: it has vLLM's methods for pooling models, and refuses those that sample."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from offshoot._llm import LLM
from offshoot._params import _whole
from offshoot._pooling import (
    ClassificationRequestOutput,
    PoolingParams,
    PoolingRequestOutput,
    ScoringRequestOutput,
)
from offshoot._scorer import Scorer
from offshoot._vllm import WITHOUT_MEANING

#: What vLLM calls the work of a scorer.
RUNNERS = ("auto", "pooling")
TASKS = ("auto", "classify", "token_classify", "reward", "score")
CONVERSIONS = ("auto", "none", "classify", "reward")

#: Arguments of ``LLM`` that change no score.
_IGNORED = WITHOUT_MEANING | frozenset(
    ["dtype", "enable_sleep_mode", "generation_config", "override_generation_config", "seed", "swap_memory"])


class PoolingLLM(LLM):
    """An ``LLM`` whose model scores texts: ``encode``, ``classify``, ``score``, ``reward``. ``form``: as of
    ``Scorer``, which ``scorer`` is."""

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
                raise NotImplementedError(f"{name}: expected 1 for a model that scores, found {count}")
        for name, found, meant in (
            ("runner", runner, RUNNERS), ("task", task, TASKS), ("convert", convert, CONVERSIONS),
        ):
            if found is not None and found not in meant:
                raise NotImplementedError(
                    f"{name}: expected {' or '.join(meant)}, as the model scores texts, found {found!r}")
        if unknown := sorted(set(more) - _IGNORED):
            raise TypeError(f"LLM: there is no argument {unknown[0]!r} of a model that scores")
        if ignored := sorted(set(more) & WITHOUT_MEANING):
            warnings.warn(f"without a meaning in Offshoot, ignored: {', '.join(ignored)}", stacklevel=2)
        self._scorer = self.scorer = Scorer(
            model, form, device=device, weights=weights, memory=memory, gpu_memory_utilization=gpu_memory_utilization,
            kv_memory=kv_memory, max_model_len=max_model_len, max_num_seqs=max_num_seqs, deterministic=deterministic,
            threads=threads)
        self.model, self.tokenizer = self._scorer.model, self._scorer.tokenizer
        self.max_model_len = self._scorer.facts["context"]
        self.seed = 0

    def __repr__(self) -> str:
        return f"LLM({self.model!r}, device={self._scorer.facts['device']!r})"

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

    def embed(self, prompts: Any, **_: Any) -> NoReturn:
        raise ValueError(f"LLM.embed: {self.model} scores texts and makes no vectors of them; it has encode, classify, "
                         "score and reward")


def _refused(name: str) -> Any:
    def refuse(self: PoolingLLM, *_: Any, **__: Any) -> NoReturn:
        raise ValueError(f"LLM.{name}: {self.model} scores texts and samples none; it has encode, classify, score and "
                         "reward")

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
