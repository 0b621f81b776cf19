"""Searches with plain Python functions: votes, best-of-N, trees of thoughts, beam search over steps, DVTS, MCTS,
particles; and rollouts for trainers: groups, segments, branching at high entropy.

The functions run while other samples still decode. Each text is assessed once; what a function raises is raised by the
search, which ends. A prompt is a text, token ids or a dict as for ``LLM.generate``, a list of them gives a list of
outcomes. With the same ``seed`` a search gives the same samples, however many prompts it has; without it the seed is
that of ``sampling_params``, or 0. Functions that need a second argument get the prompt's index.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, cast, overload

from offshoot._facts import Judged, SampleFinish
from offshoot._llm import LLM, Interrupted, _is_one, _progress, _several
from offshoot._native import Assessed, NativeCalls, NativePointer, Records, SearchPrompt
from offshoot._native import search as _native_search
from offshoot._params import MOST_SAMPLES, SamplingParams, _choice, _flag, _number, _whole
from offshoot._rollouts import RolloutTrie
from offshoot._scorer import Scorer, _turns
from offshoot.inputs import PromptType

if TYPE_CHECKING:
    import pyarrow as pa

_DECIDE = ("best", "vote", "weighted_vote")
_AGGREGATES = ("last", "min", "product", "mean")
_Aggregate = Literal["last", "min", "product", "mean"]
_Decide = Literal["best", "vote", "weighted_vote"]
_Resampling = Literal["multinomial", "systematic"]
_NO_WORDS = "words: expected the values of the words that `value`'s prompt is answered by, found none"

#: An answer in a text: a pattern (its first group, of the last match), or a function, as ``JsonPointer("/answer")`` is.
Answer = str | re.Pattern[str] | Callable[[str], "str | None"]

#: Whether a text or an answer is right, and what a text is worth; a second argument is the prompt's index.
Grade = Callable[[str], bool] | Callable[[str, int], bool]
Score = Callable[[str], float] | Callable[[str, int], float]

#: What a scorer is told: a text or the turns of a conversation; for several prompts a list of them.
Question = str | Sequence[Any]

_P = ParamSpec("_P")


class _Search(Protocol[_P]):
    """A search: of one prompt it gives an outcome, of several a list of outcomes."""

    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, llm: LLM, prompts: PromptType, *args: _P.args, **settings: _P.kwargs) -> Outcome: ...
    @overload
    def __call__(
        self, llm: LLM, prompts: Sequence[PromptType], *args: _P.args, **settings: _P.kwargs) -> list[Outcome]: ...


def _search_of(function: Callable[Concatenate[LLM, Any, _P], Any]) -> _Search[_P]:
    return cast("_Search[_P]", function)


@dataclasses.dataclass(slots=True)
class Sample:
    """A candidate with its assessment. ``finish_reason`` is the word that samples.jsonl has for it; ``detail`` is what
    a judge found, and None in searches whose texts Python's functions assess. ``score``: by a ``scorer``, and
    ``step_scores`` those of its steps; ``score_error``: why it has none."""

    index: int
    text: str
    tokens: int
    finish_reason: SampleFinish
    logprob: float
    answer: str | None = None
    correct: bool | None = None
    detail: Judged | None = None
    score: float | None = None
    step_scores: list[float | None] | None = None
    score_error: str | None = None


@dataclasses.dataclass(slots=True)
class Straggler:
    """A sample that was cancelled because enough others had finished, with the number of tokens that it had."""

    index: int
    tokens: int


@dataclasses.dataclass(slots=True)
class Outcome:
    """The result of a search on one prompt. ``prediction``: the answer chosen; ``chosen``: the index of its sample;
    ``tied``: if there are several, the samples on which the choice could have fallen as well, ``chosen`` first (of a
    vote, the first sample of each answer with the most votes); ``votes``: answers with their votes, most first;
    ``scores``: the scorer's values by sample."""

    samples: list[Sample]
    prediction: str | None
    correct: bool | None
    votes: list[tuple[str, int]]
    chosen: int | None
    tied: list[int]
    cancelled: int
    scores: list[float | None] | list[list[float | None]] | None
    sampled_tokens: int
    given_tokens: int
    nodes: int
    #: Samples that were cancelled because ``min_finished`` others had finished: their indices and tokens.
    stragglers: list[Straggler] = dataclasses.field(default_factory=list)
    #: The samples as a packed trie, of searches that are asked for it.
    rollouts: RolloutTrie | None = None

    def to_arrow(self) -> pa.Table:
        """The samples as a ``pyarrow.Table``, whose memory is not copied."""
        import pyarrow as pa

        names = {"finish_reason": "finish", "detail": "judged"}
        rows = (
            {names.get(name, name): value for name, value in dataclasses.asdict(each).items()} for each in self.samples)
        return pa.table(Records("sample", lines="\n".join(map(json.dumps, rows))))

    @property
    def best(self) -> Sample | None:
        """The sample chosen."""
        return next((sample for sample in self.samples if sample.index == self.chosen), None)


@_search_of
def vote(
    llm: LLM, prompts: Any, n: int = 40, *, answer: Answer | None = None, json: str | None = None,
    tool_call: bool = False, grade: Grade | None = None,
    sampling_params: SamplingParams | None = None, seed: int | None = None,
    stop_when: Literal["never", "certain"] | float | Mapping[str, int] = "never", min_finished: int | None = None,
    scorer: Scorer | None = None,
    question: Question | None = None, delimiter: str = "\n", aggregate: _Aggregate | None = None,
    use_tqdm: bool = False,
) -> Outcome | list[Outcome]:
    """Self-consistency: ``n`` samples vote by their answers: those that ``answer`` finds; with ``json`` the values at
    this JSON pointer, such as "/answer", in the JSON of their texts; with ``tool_call`` their calls of tools, or with
    both the values at the pointer in their last call, such as "/arguments/city". ``grade(answer)`` says whether an
    answer is right. Once ``min_finished`` have finished the others are cancelled: they are ``stragglers`` of the
    outcome.
    ``stop_when="certain"`` skips samples that cannot change the vote; a number such as 0.95 those that are unlikely
    to; ``{"window": 5}`` those behind five that gave one answer, where every five samples are a window.
    With ``scorer`` each vote weighs what the scorer makes of its sample, whose steps end with ``delimiter``;
    ``question`` and ``aggregate`` as in ``best_of_n``."""
    if isinstance(stop_when, Mapping):
        if set(stop_when) != {"window"}:
            raise ValueError(f"stop_when: expected a dict with the key window, found {dict(stop_when)!r}")
        until: Any = {"agreeing": _whole("stop_when", stop_when["window"], 2, MOST_SAMPLES)}
    elif not isinstance(stop_when, str):
        chance = _number("stop_when", stop_when)
        if not 0.5 < chance < 1:
            raise ValueError(
                "stop_when: expected never, certain, a probability between 0.5 and 1 or a dict with a window, "
                f"found {stop_when!r}")
        until = {"confident": chance}
    else:
        until = _choice("stop_when", stop_when, ("never", "certain"))
    if scorer is not None and until != "never":
        raise ValueError(f"stop_when: expected never beside scorer, found {stop_when!r}")
    method = {"vote": {
        "n": _whole("n", n, 1, MOST_SAMPLES), "stop_when": until, "delimiter": _text("delimiter", delimiter),
        "aggregate": _aggregate_of_steps(aggregate, scorer)}}
    assess = _Assess(answer=_voted(answer, json, _flag("tool_call", tool_call)), grade=grade)
    return _search(
        llm, prompts, method, sampling_params, seed, use_tqdm, assess=assess, grades=grade is not None,
        min_finished=_min_finished(min_finished, n), scorer=scorer, question=question)


@_search_of
def best_of_n(
    llm: LLM, prompts: Any, n: int = 16, *, score: Score | None = None, grade: Grade | None = None,
    by: Literal["score", "grade", "logprob", "mean_logprob"] | None = None, answer: Answer | None = None,
    stop_when_passed: bool = False, min_finished: int | None = None, scorer: Scorer | None = None,
    question: Question | None = None, delimiter: str = "\n", aggregate: _Aggregate | None = None,
    sampling_params: SamplingParams | None = None,
    seed: int | None = None, use_tqdm: bool = False,
) -> Outcome | list[Outcome]:
    """The best of ``n`` samples: by ``score(text)``, by ``scorer``, a reward model that reads each sample as it
    finishes, by ``grade(text)`` (the first that passes), or by the model's own ``by="logprob"`` or ``"mean_logprob"``.
    ``stop_when_passed`` ends the others once one passes, ``min_finished`` once so many have finished. A scorer's steps
    end with ``delimiter``; ``aggregate``: how their scores become the sample's, by default as its form says.
    ``question``: what it is told, a text or the turns of a conversation, for several prompts a list of them; by default
    the prompt's text, which must have no special tokens, as a chat template writes them, and be no token ids."""
    _one_of(score, scorer)
    measure = _choice("by", by or ("score" if score or scorer else "grade" if grade else "mean_logprob"),
                      ("score", "grade", "logprob", "mean_logprob"))
    if measure == "score" and score is None and scorer is None or measure == "grade" and grade is None:
        raise TypeError(f"best_of_n: `by={measure!r}` needs the function `{measure}`")
    if scorer is not None and measure != "score":
        raise TypeError(f"by: expected score or None beside scorer, found {by!r}")
    if measure == "score" and stop_when_passed:
        raise ValueError("stop_when_passed: expected False, as samples are chosen by their scores, found True")
    method = {"best_of_n": {
        "n": _whole("n", n, 1, MOST_SAMPLES), "by": None if measure == "score" else measure,
        "stop_when_passed": bool(stop_when_passed), "delimiter": _text("delimiter", delimiter),
        "aggregate": _aggregate_of_steps(aggregate, scorer)}}
    assess = _Assess(answer=answer, grade=grade, score=score, grades_text=True)
    return _search(
        llm, prompts, method, sampling_params, seed, use_tqdm, assess=assess, grades=grade is not None,
        min_finished=_min_finished(min_finished, n), scorer=scorer, question=question)


@_search_of
def sample(
    llm: LLM, prompts: Any, n: int = 16, *, grade: Grade | None = None, score: Score | None = None,
    answer: Answer | None = None, min_finished: int | None = None, rollouts: bool = False,
    sampling_params: SamplingParams | None = None, seed: int | None = None, use_tqdm: bool = False,
) -> Outcome | list[Outcome]:
    """``n`` samples, graded by ``grade(text)``, without a choice: for pass@k, and for groups of a trainer. Once
    ``min_finished`` have finished the others are cancelled. With ``rollouts`` the outcome has the finished samples as a
    packed trie, whose rewards are their ``score(text)``, or 1 and 0 by ``grade``."""
    assess = _Assess(answer=answer, grade=grade, score=score, grades_text=True)
    method = {"sample": {"n": _whole("n", n, 1, MOST_SAMPLES)}}
    return _search(
        llm, prompts, method, sampling_params, seed, use_tqdm, assess=assess, grades=grade is not None,
        min_finished=_min_finished(min_finished, n), rollouts=_flag("rollouts", rollouts))


@_search_of
def tree_po(
    llm: LLM, prompts: Any, *, samples: int = 16, segment: int = 64, branches: int = 2, tokens: int | None = None,
    grade: Grade | None = None, score: Score | None = None, answer: Answer | None = None,
    sampling_params: SamplingParams | None = None, seed: int | None = None, use_tqdm: bool = False,
) -> Outcome | list[Outcome]:
    """Rollouts by segments (TreePO): samples grow by ``segment`` tokens; at the end of a segment the likeliest become
    up to ``branches`` samples, and once none goes on, earlier ends of segments are returned to, first those behind
    which no sample passes. At most ``samples`` of them, and ``tokens`` sampled tokens (by default what so many samples
    have at most). ``outcome.rollouts`` is the packed trie, whose rewards are ``score(text)``, or 1 and 0 by
    ``grade(text)``."""
    room = (sampling_params.max_tokens if sampling_params is not None else None) or 256
    budget = samples * room if tokens is None else tokens
    method = {"tree_po": {
        "samples": _count("samples", samples), "segment": _count("segment", segment),
        "branches": _count("branches", branches), "tokens": _count("tokens", budget)}}
    assess = _Assess(answer=answer, grade=grade, score=score, grades_text=True)
    return _search(llm, prompts, method, sampling_params, seed, use_tqdm, assess=assess, grades=grade is not None,
                   rollouts=True)


@_search_of
def entropy_branching(
    llm: LLM, prompts: Any, *, paths: int = 4, forks: int = 3, branches: int = 1, grade: Grade | None = None,
    score: Score | None = None, answer: Answer | None = None, sampling_params: SamplingParams | None = None,
    seed: int | None = None, use_tqdm: bool = False,
) -> Outcome | list[Outcome]:
    """Rollouts that branch where the model is least certain: ``paths`` samples are drawn, and each is forked at its
    ``forks`` tokens of highest entropy, from where ``branches`` more go on. ``outcome.rollouts`` is the packed trie,
    whose rewards are ``score(text)``, or 1 and 0 by ``grade(text)``."""
    method = {"entropy_branching": {
        "paths": _count("paths", paths), "forks": _count("forks", forks), "branches": _count("branches", branches)}}
    assess = _Assess(answer=answer, grade=grade, score=score, grades_text=True)
    return _search(llm, prompts, method, sampling_params, seed, use_tqdm, assess=assess, grades=grade is not None,
                   rollouts=True)


@_search_of
def tree_of_thoughts(
    llm: LLM, prompts: Any, *, value: Callable[[list[str]], float | str] | Callable[[list[str], int], float | str],
    propose: Callable[[list[str]], list[str] | str] | Callable[[list[str], int], list[str] | str] | None = None,
    steps: int = 3, breadth: int = 5, thoughts: int = 5,
    thought: Callable[[str], str | None] | Callable[[str, int], str | None] | None = None,
    is_end: Callable[[str], bool] | Callable[[str, int], bool] | None = None,
    state: Callable[[list[str]], str | None] | Callable[[list[str], int], str | None] | None = None,
    words: Mapping[str, float] | None = None, value_samples: int = 0,
    select: Literal["greedy", "sample"] = "greedy", depth_first: tuple[float, int] | None = None,
    thought_stop: str | list[str] = "\n", thought_tokens: int | None = None, answers: int | None = None,
    answer_tokens: int | None = None, answer: Answer | None = None, grade: Grade | None = None,
    sampling_params: SamplingParams | None = None, seed: int | None = None, use_tqdm: bool = False,
) -> Outcome | list[Outcome]:
    """Tree of thoughts (Yao et al., 2023) with functions of the path, a list of thoughts.

    ``propose(path)`` returns the next thoughts, or a prompt by which the model lists them, one per line (``thoughts``
    lists); without it ``thoughts`` continuations are sampled up to ``thought_stop``. ``value(path)`` returns the path's
    value, or a prompt whose answer is one of ``words`` (from their probabilities, or from ``value_samples`` answers).
    The best ``breadth`` paths go on, for ``steps`` thoughts. ``thought(text)`` is the thought in a sampled text or in a
    line of a list, or None; by default the text without white space around it. A path ends at a thought for which
    ``is_end(thought)`` is true; paths of equal ``state(path)`` are merged.
    ``depth_first=(threshold, visits)`` goes down the best path and back. ``answers``: so many paths are answered by
    further samples; otherwise the paths are the answers.
    """
    stop = SamplingParams(stop=thought_stop).stop
    if words is not None and not isinstance(words, Mapping):
        raise TypeError(f"words: expected a dict of values by word, found {words!r}")
    weights = [(_text("words", word), _number("words", weight)) for word, weight in (words or {}).items()]
    if not weights and value_samples:
        raise ValueError(_NO_WORDS)
    if depth_first is not None and not (isinstance(depth_first, (tuple, list)) and len(depth_first) == 2):
        raise TypeError(f"depth_first: expected a threshold and a number of visits, found {depth_first!r}")
    method = {"tree_of_thoughts": {
        "steps": _count("steps", steps), "breadth": _count("breadth", breadth),
        "thoughts": _count("thoughts", thoughts), "words": weights,
        "value_samples": _whole("value_samples", value_samples, 0, MOST_SAMPLES),
        "select": _choice("select", select, ("greedy", "sample")),
        "depth_first": depth_first and [_number("depth_first", depth_first[0]), _count("depth_first", depth_first[1])],
        "answers": _count("answers", answers), "answer_tokens": _count("answer_tokens", answer_tokens),
        "thought_tokens": _count("thought_tokens", thought_tokens), "thought_stop": stop}}
    values = _with_index("value", value)
    if values is None:
        raise TypeError("value: expected a function, found None")

    def valued(index: int, path: list[str]) -> float | str:
        found: float | str = values(index, path)
        if isinstance(found, str) and not weights:
            raise ValueError(_NO_WORDS)
        return found

    assess = _Assess(answer=answer, grade=grade, grades_text=True)
    return _search(
        llm, prompts, method, sampling_params, seed, use_tqdm, assess=assess, grades=grade is not None,
        propose=_with_index("propose", propose), value=valued, thought=_with_index("thought", thought),
        ends=_with_index("is_end", is_end), state=_with_index("state", state))


@_search_of
def beam_search(
    llm: LLM, prompts: Any, *, score: Score | None = None, samples: int = 16, expansions: int = 4,
    delimiter: str = "\n", most_steps: int = 40, lookahead: int = 0, aggregate: _Aggregate = "last",
    by: _Decide = "best", answer: Answer | None = None, grade: Grade | None = None, scorer: Scorer | None = None,
    question: Question | None = None,
    sampling_params: SamplingParams | None = None, seed: int | None = None, use_tqdm: bool = False,
) -> Outcome | list[Outcome]:
    """Beam search over steps, which end with ``delimiter``: of ``samples`` steps the best 1/``expansions`` go on.
    ``score(text)``, or ``scorer``, a reward model, values a partial solution (without either its mean probability
    does), together with the next ``lookahead`` steps, which are sampled greedily and thrown away; ``aggregate``: last,
    min, product or mean of the steps' values; ``by``: best, vote or weighted_vote."""
    return _stepwise("beam_search", llm, prompts, score, samples, expansions, delimiter, most_steps, lookahead,
                     aggregate, by, answer, grade, sampling_params, seed, use_tqdm, scorer, question)


@_search_of
def dvts(
    llm: LLM, prompts: Any, *, score: Score | None = None, samples: int = 16, expansions: int = 4,
    delimiter: str = "\n", most_steps: int = 40, lookahead: int = 0, aggregate: _Aggregate = "last",
    by: _Decide = "best", answer: Answer | None = None, grade: Grade | None = None, scorer: Scorer | None = None,
    question: Question | None = None,
    sampling_params: SamplingParams | None = None, seed: int | None = None, use_tqdm: bool = False,
) -> Outcome | list[Outcome]:
    """Diverse verifier tree search (Beeching et al., 2024): ``samples`` / ``expansions`` greedy searches side by side.
    The settings are those of ``beam_search``."""
    return _stepwise("dvts", llm, prompts, score, samples, expansions, delimiter, most_steps, lookahead, aggregate, by,
                     answer, grade, sampling_params, seed, use_tqdm, scorer, question)


def _stepwise(
    name: str, llm: LLM, prompts: Any, score: Score | None, samples: int, expansions: int, delimiter: str,
    most_steps: int, lookahead: int, aggregate: _Aggregate, by: _Decide, answer: Answer | None, grade: Grade | None,
    sampling_params: SamplingParams | None, seed: int | None, use_tqdm: bool, scorer: Scorer | None,
    question: Question | None,
) -> Outcome | list[Outcome]:
    """A search over steps by its name."""
    _one_of(score, scorer)
    method = {name: {"scored": score is not None, "settings": {
        "samples": _count("samples", samples), "expansions": _count("expansions", expansions),
        "steps": {"delimiter": _text("delimiter", delimiter), "most": _count("most_steps", most_steps)},
        "lookahead": _whole("lookahead", lookahead, 0, (1 << 32) - 1),
        "aggregate": _choice("aggregate", aggregate, _AGGREGATES), "by": _choice("by", by, _DECIDE)}}}
    if samples % expansions:
        raise ValueError(f"samples: expected a multiple of expansions ({expansions}), found {samples}")
    assess = _Assess(answer=answer, grade=grade, score=score, grades_text=True)
    return _search(llm, prompts, method, sampling_params, seed, use_tqdm, assess=assess, grades=grade is not None,
                   scorer=scorer, question=question)


@_search_of
def particle_filtering(
    llm: LLM, prompts: Any, *, score: Score | None = None, samples: int = 16, delimiter: str = "\n",
    most_steps: int = 40, aggregate: _Aggregate = "last", resampling: _Resampling = "multinomial",
    by: _Decide = "best", answer: Answer | None = None, grade: Grade | None = None, scorer: Scorer | None = None,
    question: Question | None = None,
    sampling_params: SamplingParams | None = None, seed: int | None = None, use_tqdm: bool = False,
) -> Outcome | list[Outcome]:
    """Particle filtering over steps (Puri et al., 2025): after each step ``samples`` partial solutions are drawn anew
    from those there are, in proportion to the odds of ``score(text)``, which is from 0 to 1, or to those by ``scorer``,
    a reward model (without either, of their mean probability). ``resampling``: multinomial or systematic;
    ``aggregate`` and ``by`` as in ``beam_search``."""
    return _particles(llm, prompts, score, samples, 1, 0, delimiter, most_steps, aggregate, resampling, by, answer,
                      grade, sampling_params, seed, use_tqdm, scorer, question)


@_search_of
def particle_gibbs(
    llm: LLM, prompts: Any, *, score: Score | None = None, samples: int = 16, iterations: int = 2, references: int = 1,
    delimiter: str = "\n", most_steps: int = 40, aggregate: _Aggregate = "last",
    resampling: _Resampling = "multinomial", by: _Decide = "best", answer: Answer | None = None,
    grade: Grade | None = None, scorer: Scorer | None = None,
    question: Question | None = None, sampling_params: SamplingParams | None = None,
    seed: int | None = None, use_tqdm: bool = False,
) -> Outcome | list[Outcome]:
    """Particle filtering ``iterations`` times, with ``samples`` / ``iterations`` particles each. From the second time
    on ``references`` solutions of the time before, drawn by their scores, take part. The settings are those of
    ``particle_filtering``."""
    return _particles(llm, prompts, score, samples, iterations, references, delimiter, most_steps, aggregate,
                      resampling, by, answer, grade, sampling_params, seed, use_tqdm, scorer, question)


def _particles(
    llm: LLM, prompts: Any, score: Score | None, samples: int, iterations: int, references: int, delimiter: str,
    most_steps: int, aggregate: _Aggregate, resampling: _Resampling, by: _Decide, answer: Answer | None,
    grade: Grade | None, sampling_params: SamplingParams | None, seed: int | None, use_tqdm: bool,
    scorer: Scorer | None, question: Question | None,
) -> Outcome | list[Outcome]:
    """A search by particles."""
    _one_of(score, scorer)
    method = {"particles": {"scored": score is not None, "settings": {
        "samples": _count("samples", samples), "iterations": _count("iterations", iterations),
        "references": _whole("references", references, 0 if iterations == 1 else 1, (1 << 32) - 1),
        "steps": {"delimiter": _text("delimiter", delimiter), "most": _count("most_steps", most_steps)},
        "aggregate": _choice("aggregate", aggregate, _AGGREGATES),
        "resampling": _choice("resampling", resampling, ("multinomial", "systematic")),
        "by": _choice("by", by, _DECIDE)}}}
    if samples % iterations:
        raise ValueError(f"samples: expected a multiple of iterations ({iterations}), found {samples}")
    if iterations > 1 and references >= samples // iterations:
        raise ValueError(
            f"references: expected less than the {samples // iterations} particles of an iteration, found {references}")
    assess = _Assess(answer=answer, grade=grade, score=score, grades_text=True)
    return _search(llm, prompts, method, sampling_params, seed, use_tqdm, assess=assess, grades=grade is not None,
                   scorer=scorer, question=question)


@_search_of
def mcts(
    llm: LLM, prompts: Any, *, score: Score | None = None, samples: int = 32, expansions: int = 4,
    parallel: int = 8, delimiter: str = "\n", most_steps: int = 40, select: Literal["uct", "puct"] = "uct",
    exploration: float = 1.4, widening: float | None = None, tokens: int | None = None, by: _Decide | None = None,
    answer: Answer | None = None, grade: Grade | None = None, scorer: Scorer | None = None,
    question: Question | None = None,
    sampling_params: SamplingParams | None = None, seed: int | None = None, use_tqdm: bool = False,
) -> Outcome | list[Outcome]:
    """Monte-Carlo tree search over steps: ``samples`` simulations, valued by ``score(text)``, by ``scorer``, a reward
    model, or without either by agreement of their answers. ``by``: best, vote, weighted_vote, or None for the most
    visited path."""
    _one_of(score, scorer)
    method = {"mcts": {
        "samples": _count("samples", samples), "tokens": _count("tokens", tokens),
        "expansions": _count("expansions", expansions), "parallel": _count("parallel", parallel),
        "steps": {"delimiter": _text("delimiter", delimiter), "most": _count("most_steps", most_steps)},
        "scoring": "agreement" if score is None and scorer is None else "scorer",
        "select": _choice("select", select, ("uct", "puct")),
        "exploration": _finite("exploration", exploration), "widening": widening and _finite("widening", widening),
        "by": "visits" if by is None else {"rollouts": _choice("by", by, _DECIDE)}}}
    assess = _Assess(answer=answer, grade=grade, score=score, grades_text=True)
    return _search(llm, prompts, method, sampling_params, seed, use_tqdm, assess=assess, grades=grade is not None,
                   scorer=scorer, question=question)


class _Assess:
    """(index, text) -> what a search is told of a text, by the user's functions."""

    def __init__(self, *, answer: Answer | None = None, grade: Grade | None = None, score: Score | None = None,
                 grades_text: bool = False):
        self.answer = _answer_of(answer)
        self.grade = _with_index("grade", grade)
        self.score = _with_index("score", score)
        self.grades_text = grades_text

    def __call__(self, index: int, text: str) -> Assessed:
        answer = self.answer(text)
        answer = None if answer is None else str(answer)
        correct = None
        if self.grade is not None:
            graded = text if self.grades_text else answer
            correct = False if graded is None else bool(self.grade(index, graded))
        score = None if self.score is None else float(self.score(index, text))
        return Assessed(answer, correct, score)


def _answer_of(answer: Answer | None) -> Callable[[str], str | None]:
    if answer is None:
        return lambda text: None
    if callable(answer):
        return answer
    if not isinstance(answer, (str, re.Pattern)):
        raise TypeError(f"answer: expected a pattern or a function, found {answer!r}")
    pattern = re.compile(answer)

    def last(text: str) -> str | None:
        found = None
        for found in pattern.finditer(text):
            pass
        return None if found is None else next((group for group in found.groups() if group is not None), found.group())

    return last


class JsonPointer:
    """Finds the answer of a text in a field of its JSON, for ``answer`` of any search: the value at ``pointer`` (RFC
    6901), such as "/answer" or "/steps/0/result"; a string as it is, anything else as JSON with sorted keys. The JSON
    is the text behind its reasoning, or the last that has the field and stands in it, in a fence or between other
    words. A text without it, or with null there, has no answer."""

    def __init__(self, pointer: str):
        if not isinstance(pointer, str):
            raise TypeError(f"pointer: expected a JSON pointer as a text, found {pointer!r}")
        self.pointer, self._native = pointer, NativePointer(pointer)

    def __repr__(self) -> str:
        return f"JsonPointer({self.pointer!r})"

    def __call__(self, text: str) -> str | None:
        return self._native(text)


class CalledTools:
    """Finds the answer of a text in its calls of tools, in whatever form its model writes them, for ``answer`` of any
    search: all of its calls, each as ``{"name": …, "arguments": …}``, or the value at ``pointer`` in the last call that
    has one, such as "/arguments/city". A text without calls, or with one whose arguments are no JSON, has no answer."""

    def __init__(self, pointer: str | None = None):
        if pointer is not None and not isinstance(pointer, str):
            raise TypeError(f"pointer: expected a JSON pointer as a text, found {pointer!r}")
        self.pointer, self._native = pointer, NativeCalls(pointer)

    def __repr__(self) -> str:
        return f"CalledTools({self.pointer!r})" if self.pointer is not None else "CalledTools()"

    def __call__(self, text: str) -> str | None:
        return self._native(text)


def _voted(answer: Answer | None, pointer: str | None, tool_call: bool) -> Answer:
    """How the answers of a vote are found."""
    if answer is not None:
        if pointer is not None or tool_call:
            raise TypeError(f"answer: expected none beside {'json' if pointer is not None else 'tool_call'}, found "
                            f"{answer!r}")
        return answer
    if pointer is None and not tool_call:
        raise TypeError("vote: expected how answers are found (`answer`, `json` or `tool_call`), found none of them")
    if tool_call:
        return CalledTools(pointer)
    assert pointer is not None
    return JsonPointer(pointer)


def _with_index(name: str, function: Callable[..., Any] | None) -> Callable[[int, Any], Any] | None:
    """A function of (index, x) from one of x, or of (x, index) if it needs both: a second argument with a default is
    the function's own."""
    if function is None:
        return None
    if not callable(function):
        raise TypeError(f"{name}: expected a function, found {function!r}")
    try:
        signature = inspect.signature(function)
    except ValueError:  # Built-in functions without a signature.
        return lambda index, x: function(x)
    for arguments in ((None,), (None, 0)):
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return (lambda index, x: function(x)) if len(arguments) == 1 else lambda index, x: function(x, index)
    raise TypeError(f"{name}: expected a function of one argument or of two, found {function!r}")


def _count(name: str, value: Any) -> int | None:
    return None if value is None else _whole(name, value, 1, (1 << 32) - 1)


def _min_finished(value: Any, n: int) -> int | None:
    return None if value is None else _whole("min_finished", value, 1, n)


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise (ValueError if value == "" else TypeError)(f"{name}: expected a text that is not empty, found {value!r}")
    return value


def _finite(name: str, value: Any) -> float:
    number = _number(name, value)
    if not math.isfinite(number):
        raise ValueError(f"{name}: expected a finite number, found {value!r}")
    return number


def _aggregate_of_steps(aggregate: Any, scorer: Scorer | None) -> str | None:
    """How the scores of a sample's steps become its own; None: as the scorer's form says."""
    if aggregate is None:
        return None
    if scorer is None:
        raise TypeError(f"aggregate: expected None without scorer, found {aggregate!r}")
    return _choice("aggregate", aggregate, _AGGREGATES)


def _questions(
    llm: LLM, scorer: Scorer | None, question: Question | None, encoded: Sequence[tuple[str | None, list[int]]],
    one: bool,
) -> list[str | None]:
    """What the scorer is told of each prompt, a conversation as JSON. What a chat template wrote is no question: the
    scorer has its own."""
    if scorer is None:
        if question is not None:
            raise TypeError(f"question: expected None without scorer, found {question!r}")
        return [None] * len(encoded)
    if question is None:
        tokenizer = llm._engine.tokenizer
        for at, (text, _) in enumerate(encoded):
            if text is None:
                raise ValueError(
                    f"question: expected what the scorer is told, as prompt {at} is token ids, found None")
            [ids] = tokenizer.encode([text], False, None)
            if tokenizer.decode(ids, skip_special_tokens=False) != tokenizer.decode(ids, skip_special_tokens=True):
                raise ValueError("question: expected what the scorer is told, such as the messages of the chat, as "
                                 f"prompt {at} has special tokens of the model, found None")
        return [json.dumps(_turns(text)) for text, _ in encoded]
    each: Any = [question] if one else question
    if isinstance(each, str) or len(each) != len(encoded):
        found = "a text" if isinstance(each, str) else len(each)
        raise ValueError(f"question: expected a list of {len(encoded)}, one for each prompt, found {found}")
    return [json.dumps(_turns(own)) for own in each]


def _one_of(score: Any, scorer: Any) -> None:
    """A search has one that values."""
    if score is not None and scorer is not None:
        raise TypeError("scorer: expected None beside the function `score`")


def _search(
    llm: LLM, prompts: Any, method: dict[str, Any], sampling_params: SamplingParams | None, seed: int | None,
    use_tqdm: bool, *, assess: _Assess, grades: bool, min_finished: int | None = None, rollouts: bool = False,
    scorer: Scorer | None = None, question: Question | None = None,
    **callables: Callable[[int, Any], Any] | None,
) -> Outcome | list[Outcome]:
    if not isinstance(llm, LLM):
        raise TypeError(f"llm: expected an LLM, found {llm!r}")
    if scorer is not None and not isinstance(scorer, Scorer):
        raise TypeError(f"scorer: expected a Scorer, found {scorer!r}")
    one = _is_one(prompts)
    encoded = llm._encoded([prompts] if one else _several(prompts))
    params = SamplingParams(max_tokens=256) if sampling_params is None else sampling_params
    if not isinstance(params, SamplingParams):
        raise TypeError(f"sampling_params: expected SamplingParams, found {params!r}")
    params = params.checked()
    if params.samples != 1:
        raise ValueError(
            f"sampling_params.n: expected 1, found {params.samples}: the search's own numbers say how many")
    if seed is None:
        seed = 0 if params.seed is None else params.seed
    questions = _questions(llm, scorer, question, encoded, one)
    named, room = [], llm.max_model_len
    for at, (text, ids) in enumerate(encoded):
        kept = params.truncated(ids, llm.max_model_len)
        if text is None or len(kept) < len(ids):
            ids = kept
            text = llm._engine.tokenizer.decode(ids, skip_special_tokens=False)
        if len(ids) >= llm.max_model_len:
            raise ValueError(f"prompt {at} has {len(ids)} tokens; the model's context is {llm.max_model_len}")
        named.append(SearchPrompt(ids, text, str(at), questions[at]))
        room = min(room, llm.max_model_len - len(ids))
    with _progress(use_tqdm, len(named)) as bar:
        shown = 0

        def done(finished: int) -> None:
            nonlocal shown
            bar.update(finished - shown)
            shown = finished

        found = _native_search(
            llm._updated, json.dumps(method), named, llm._sampling(params, room),
            _whole("seed", seed) % (1 << 64), assess=assess, grades=grades, done=done,
            min_finished=min_finished, rollouts=rollouts, scorer=None if scorer is None else scorer._native,
            **callables)
    if isinstance(found.ended_by, KeyboardInterrupt):
        finished = [_outcome(json.loads(each)) if isinstance(each, str) else None for each in found.outcomes]
        raise Interrupted(finished) from (None if type(found.ended_by) is KeyboardInterrupt else found.ended_by)
    if found.ended_by is not None:
        raise found.ended_by
    outcomes = []
    for each, trie in zip(found.outcomes, found.rollouts):
        if not isinstance(each, str):  # None is only beside what ended the searches.
            raise each or KeyboardInterrupt
        outcomes.append(_outcome(json.loads(each)))
        outcomes[-1].rollouts = None if trie is None else RolloutTrie(trie)
    return outcomes[0] if one else outcomes


def _outcome(row: dict[str, Any]) -> Outcome:
    samples = [
        Sample(each["index"], each["text"], each["tokens"], each["finish"], each["logprob"], each.get("answer"),
               each.get("correct"), each.get("judged"), each.get("score"), each.get("step_scores"),
               each.get("score_error"))
        for each in row["samples"]
    ]
    return Outcome(
        samples, row["prediction"], row["correct"], [tuple(vote) for vote in row["votes"]], row["chosen"],
        row.get("tied", []), row["cancelled"], row.get("scores"), row["spent"]["sampled"], row["spent"]["given"],
        row["nodes"], [Straggler(each["index"], each["tokens"]) for each in row.get("stragglers", [])])
