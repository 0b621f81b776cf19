"""``Scorer``: a reward model that scores answers, and what it computes under vLLM's names: classes, scores of pairs and
values of tokens or steps."""

from __future__ import annotations

import dataclasses
import json
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

from offshoot._native import NativeScorer
from offshoot._params import _choice
from offshoot._pooling import (
    ClassificationOutput,
    ClassificationRequestOutput,
    PoolingOutput,
    PoolingParams,
    PoolingRequestOutput,
    ScoringRequestOutput,
    opened,
    pooled,
    scored_pairs,
)

if TYPE_CHECKING:
    from offshoot._llm import Tokenizer

_AGGREGATES = ("last", "min", "product", "mean")
_Aggregate = Literal["last", "min", "product", "mean"]

#: Models of values that are not closed, for the interpreter's end.
open_pooling: "weakref.WeakSet[Any]" = weakref.WeakSet()


@dataclasses.dataclass(slots=True, frozen=True)
class AnswerScore:
    """What a scorer makes of an answer. ``score``: of the whole of it, in the scorer's own numbers; ``probability``:
    the same as a number from 0 to 1; None where there is none. ``steps``: the score of each step as it was given, None
    of one without; ``scores``: those of all parts that the scorer's form finds. ``tokens``: of question and answer in
    its form. ``error``: why there are no scores."""

    score: float | None
    probability: float | None
    steps: list[float | None]
    scores: list[float]
    tokens: int
    error: str | None = None


class Scorer:
    """A reward model in memory; threads may share it.

    ``model``: a folder as Hugging Face has it. ``form``: how it reads questions and answers, by a built-in form's name
    or as a dict; None: what its folder's scorer.json or its class says. What answers have in common is computed once,
    however often ``score`` is called. The other arguments are those of ``LLM``.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        form: str | Mapping[str, Any] | None = None,
        *,
        device: str = "auto",
        weights: str | None = None,
        memory: float | None = None,
        gpu_memory_utilization: float | None = None,
        kv_memory: int | None = None,
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        deterministic: bool = False,
        threads: int | None = None,
    ):
        native = opened(
            NativeScorer, model, form=self.form_json(form), device=device, weights=weights, memory=memory,
            gpu_memory_utilization=gpu_memory_utilization, kv_memory=kv_memory, max_model_len=max_model_len,
            max_num_seqs=max_num_seqs, deterministic=deterministic, threads=threads)
        self._take(native, os.fspath(model))

    @staticmethod
    def form_json(form: str | Mapping[str, Any] | None) -> str | None:
        """A form as the native half takes it."""
        return None if form is None else json.dumps(form if isinstance(form, str) else dict(form))

    @classmethod
    def beside(cls, native: Any, model: str) -> "Scorer":
        """A scorer that was loaded beside a model."""
        scorer = cls.__new__(cls)
        scorer._take(native, model)
        return scorer

    def _take(self, native: Any, model: str) -> None:
        from offshoot._llm import Tokenizer

        self._native, self.model = native, model
        self._facts: dict[str, Any] = native.facts()
        self.tokenizer: Tokenizer = Tokenizer(native.tokenizer, cast(Any, self._facts))
        open_pooling.add(self)

    def __repr__(self) -> str:
        return f"Scorer({self.model!r}, form={self._facts['form']!r}, device={self._facts['device']!r})"

    def __enter__(self) -> "Scorer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends its engine and frees its memory."""
        self._native.close()

    @property
    def facts(self) -> dict[str, Any]:
        """What never changes: ``form``, ``scale`` ("probability" or "logit"), ``values`` at a token, ``context``,
        ``device`` and so on."""
        return self._facts.copy()

    def metrics(self) -> dict[str, Any]:
        """Counters since the start, such as ``prompt_tokens_logical`` and ``prompt_tokens_computed``."""
        return cast("dict[str, Any]", json.loads(self._native.metrics()))

    def get_tokenizer(self) -> "Tokenizer":
        return self.tokenizer

    # Answers to questions.

    def rate(
        self, question: str | Sequence[Mapping[str, Any]], answers: Sequence[str | Sequence[str]], *,
        aggregate: _Aggregate | None = None,
    ) -> list[AnswerScore]:
        """What the scorer makes of each answer to a question: a text, or the turns of a conversation. An answer is a
        text or a list of its steps. ``aggregate``: how the steps' scores become an answer's; by default the form
        says."""
        return self._rated([question], [answers], aggregate)[0]

    def score(
        self, questions: Any, answers: Any, /, *, aggregate: _Aggregate | None = None, use_tqdm: bool = True,
        pooling_params: PoolingParams | None = None, **more: Any,
    ) -> Any:
        """Scores of answers. Of a question and an answer (texts) the answer's score, of a question and a list of
        answers a list of scores. Of a list of questions and a list of lists of answers, as search-and-learn's reward
        models have it: for each question and answer the list of its steps' scores. An answer that has no score raises
        ``ValueError``."""
        from offshoot._llm import _refuse

        _refuse(**more)
        del use_tqdm, pooling_params
        if isinstance(questions, str) or _is_conversation(questions):
            one = isinstance(answers, str)
            rated = self.rate(questions, [answers] if one else list(answers), aggregate=aggregate)
            scores = [_scored(each).score for each in rated]
            return scores[0] if one else scores
        questions, answers = list(questions), [list(each) for each in answers]
        rated_all = self._rated(questions, answers, aggregate)
        return [[list(_scored(each).scores) for each in of_question] for of_question in rated_all]

    def _rated(
        self, questions: Sequence[Any], answers: Sequence[Sequence[Any]], aggregate: _Aggregate | None,
    ) -> list[list[AnswerScore]]:
        if len(questions) != len(answers):
            raise ValueError(f"answers: expected {len(questions)} lists, one for each question, found {len(answers)}")
        if aggregate is not None:
            _choice("aggregate", aggregate, _AGGREGATES)
        turns = [json.dumps(_turns(question)) for question in questions]
        steps = [[_steps(answer) for answer in of_question] for of_question in answers]
        return [[AnswerScore(each.score, each.probability, each.steps, each.scores, each.tokens,
                             each.error) for each in of_question]
                for of_question in self._native.score(turns, steps, aggregate)]

    # vLLM's names.

    def encode(
        self, prompts: Any, pooling_params: PoolingParams | Sequence[PoolingParams] | None = None, *,
        use_tqdm: bool = True, lora_request: None = None, pooling_task: str | None = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[PoolingRequestOutput]:
        """What the model computes of each prompt, as vLLM's ``LLM.encode``: ``outputs.data`` has the classes of each
        token or step, or of the prompt (``pooling_task`` token_classify or classify)."""
        task = pooling_task
        if isinstance(pooling_params, PoolingParams):
            task = task or pooling_params.task
        answers = pooled(self._native, "/pooling", prompts, pooling_params, task, tokenization_kwargs, lora_request)
        return [PoolingRequestOutput(str(index), PoolingOutput.of(entry["data"]), ids)
                for index, (ids, entry) in enumerate(answers)]

    def reward(
        self, prompts: Any, /, *, use_tqdm: bool = True, pooling_params: PoolingParams | None = None,
        lora_request: None = None,
    ) -> list[PoolingRequestOutput]:
        """``encode`` with the classes of each token or step, as older versions of vLLM had it."""
        return self.encode(prompts, pooling_params, use_tqdm=use_tqdm, pooling_task="token_classify",
                           lora_request=lora_request)

    def classify(
        self, prompts: Any, *, pooling_params: PoolingParams | None = None, use_tqdm: bool = True,
        lora_request: None = None, tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[ClassificationRequestOutput]:
        """The classes of each prompt, as vLLM's ``LLM.classify``: ``outputs.probs``."""
        answers = pooled(self._native, "/classify", prompts, pooling_params, None, tokenization_kwargs, lora_request)
        return [ClassificationRequestOutput(str(index), ClassificationOutput(entry["probs"]), ids)
                for index, (ids, entry) in enumerate(answers)]

    def pairs(
        self, data_1: Any, data_2: Any, *, pooling_params: PoolingParams | None = None,
    ) -> list[ScoringRequestOutput]:
        """The scores of pairs, as vLLM's ``LLM.score``: of a query and documents, or of a question and answers in the
        scorer's form. One of the first is that of all."""
        return scored_pairs(self._native, data_1, data_2, pooling_params)


def _scored(score: AnswerScore) -> AnswerScore:
    if score.error is not None:
        raise ValueError(f"an answer has no score: {score.error}")
    return score


def _is_conversation(question: Any) -> bool:
    return isinstance(question, Sequence) and len(question) > 0 and isinstance(question[0], Mapping)


def _turns(question: Any) -> list[dict[str, Any]]:
    """The turns of a question: a text is one of the user."""
    if isinstance(question, str):
        return [{"role": "user", "content": question}]
    if _is_conversation(question) and all(isinstance(turn, Mapping) for turn in question):
        return [dict(turn) for turn in question]
    raise TypeError(f"question: expected a text or a list of turns with `role` and `content`, found {question!r}")


def _steps(answer: Any) -> list[str]:
    """The steps of an answer: a text is one."""
    steps = [answer] if isinstance(answer, str) else list(answer)
    if not all(isinstance(step, str) for step in steps):
        raise TypeError(f"answers: expected texts or lists of steps, found {answer!r}")
    return steps
