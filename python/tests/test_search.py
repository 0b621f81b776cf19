"""Searches with Python's functions: what they choose, when the functions run, and what becomes of their exceptions."""

import collections
import threading
import types
import typing

import numpy
import pytest

import offshoot
from offshoot import SamplingParams

ANSWER = r"= (\d+)"
PARAMS = SamplingParams(max_tokens=60, stop=["\n\n"])


def fits(value, kind):
    """Whether a value is of a type; a dict of named fields has those that are always there and no unknown ones."""
    origin, of = typing.get_origin(kind), typing.get_args(kind)
    if typing.is_typeddict(kind):
        always, known = kind.__required_keys__, typing.get_type_hints(kind)
        return isinstance(value, dict) and always <= value.keys() <= known.keys() and all(
            fits(each, known[name]) for name, each in value.items())
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, each) for each in of)
    if origin is list:
        return isinstance(value, list) and all(fits(each, of[0]) for each in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(name, of[0]) and fits(each, of[1]) for name, each in value.items())
    if origin is typing.Literal:
        return value in of
    return kind is typing.Any or isinstance(value, (int, float) if kind is float else kind)


def test_a_vote_is_the_most_frequent_answer(llm, question):
    outcome = offshoot.vote(
        llm, question, 24, answer=ANSWER, grade=lambda answer: answer == "7", sampling_params=PARAMS)
    counted = collections.Counter(sample.answer for sample in outcome.samples if sample.answer is not None)
    assert outcome.votes[0][1] == counted.most_common(1)[0][1] == counted[outcome.prediction]
    assert outcome.correct == (outcome.prediction == "7")
    assert outcome.best.answer == outcome.prediction and len(outcome.samples) == 24
    table = outcome.to_arrow()
    assert table["text"].to_pylist() == [sample.text for sample in outcome.samples]
    assert table["answer"].to_pylist() == [sample.answer for sample in outcome.samples]


def test_votes_of_many_prompts_are_those_of_each(llm):
    prompts = [f"Question: {name} has {count} pens and buys 4 more. How many pens does {name} have now?\nAnswer:"
               for name, count in (("Mia", 3), ("Tom", 5), ("Eve", 2))]
    both = offshoot.vote(llm, prompts, 8, answer=ANSWER, sampling_params=PARAMS, seed=3)
    again = offshoot.vote(llm, prompts, 8, answer=ANSWER, sampling_params=PARAMS, seed=3)
    assert [each.votes for each in both] == [each.votes for each in again]
    assert [sample.text for sample in both[0].samples] == [
        sample.text
        for sample in offshoot.vote(llm, prompts[:1], 8, answer=ANSWER, sampling_params=PARAMS, seed=3)[0].samples]


def test_samples_that_tie_are_named(llm, question):
    wild = SamplingParams(max_tokens=12, temperature=3)
    outcome = offshoot.vote(llm, question, 4, answer=lambda text: text, sampling_params=wild, seed=1)
    assert len(outcome.votes) == 4, "all answers differ"
    assert outcome.tied == [0, 1, 2, 3] and outcome.chosen == 0
    assert offshoot.best_of_n(llm, question, 3, score=lambda text: 1.0, sampling_params=wild).tied == [0, 1, 2]
    scores = {}
    outcome = offshoot.best_of_n(
        llm, question, 3, score=lambda text: scores.setdefault(text, float(len(scores))), sampling_params=wild)
    assert len(scores) == 3 and outcome.tied == []


def test_a_decided_vote_skips_the_rest(llm, question):
    whole = offshoot.vote(llm, question, 32, answer=lambda text: "same", sampling_params=PARAMS, stop_when="certain")
    assert whole.prediction == "same" and len(whole.samples) == 17 and whole.cancelled == 15


def test_a_window_that_agrees_ends_a_vote(llm, question):
    outcome = offshoot.vote(
        llm, question, 32, answer=lambda text: "same", sampling_params=PARAMS, stop_when={"window": 5})
    assert len(outcome.samples) == 5 and outcome.cancelled == 27


def test_particles_are_drawn_by_their_scores(llm, question):
    params = SamplingParams(max_tokens=40, temperature=1.5, stop=["\n\n"])

    def even(text):
        return 0.999999 if len(text) % 2 == 0 else 0.000001

    for search, more in ((offshoot.particle_filtering, {"resampling": "systematic"}),
                         (offshoot.particle_gibbs, {"iterations": 2, "references": 2})):
        first, again = (search(llm, question, score=even, samples=12, delimiter=" ", sampling_params=params, seed=5,
                               **more) for _ in range(2))
        assert [sample.text for sample in first.samples] == [sample.text for sample in again.samples]
        assert even(first.best.text) > 0.5
    with pytest.raises(ValueError, match="from 0 to 1"):
        offshoot.particle_filtering(llm, question, score=len, samples=2, sampling_params=params)


def test_graders_see_the_index_and_run_while_others_decode(llm, question):
    seen, threads = [], set()

    def grade(text, index):
        seen.append(index)
        threads.add(threading.get_ident())
        return len(text) % 2 == 0

    outcomes = offshoot.best_of_n(llm, [question, question + " "], 6, grade=grade, sampling_params=PARAMS)
    assert set(seen) == {0, 1} and threading.get_ident() not in threads
    for outcome in outcomes:
        assert outcome.correct == any(sample.correct for sample in outcome.samples)
        assert all(sample.correct == (len(sample.text) % 2 == 0) for sample in outcome.samples)


def test_a_second_argument_with_a_default_is_the_function_s_own(llm, question):
    right = "7"
    for grade in (lambda answer, right=right: answer == right, lambda answer, *more: answer == right and not more):
        outcome = offshoot.vote(llm, question, 8, answer=ANSWER, grade=grade, sampling_params=PARAMS)
        assert [sample.correct for sample in outcome.samples] == [sample.answer == "7" for sample in outcome.samples]
    with pytest.raises(TypeError, match="grade: expected a function of one argument or of two"):
        offshoot.vote(llm, question, 8, answer=ANSWER, grade=lambda: True, sampling_params=PARAMS)


def test_the_seed_of_the_parameters_holds(llm, question):
    def texts(seed=None):
        params = SamplingParams(max_tokens=12, temperature=2, seed=seed)
        return [sample.text for sample in offshoot.sample(llm, question, 4, sampling_params=params).samples]

    assert texts(1) != texts(2)
    assert texts(1) == texts(numpy.int64(1))
    assert texts() == texts(0)
    params = SamplingParams(max_tokens=12, temperature=2, seed=2)
    own = offshoot.sample(llm, question, 4, sampling_params=params, seed=numpy.int64(1))
    assert [sample.text for sample in own.samples] == texts(1)


def test_wrong_settings_are_named(llm, question):
    for name, search in {
        "llm": lambda: offshoot.vote("llm", question, 2, answer="x"),
        "prompts": lambda: offshoot.vote(llm, None, 2, answer="x"),
        "sampling_params": lambda: offshoot.vote(llm, question, 2, answer="x", sampling_params={"n": 1}),
        "seed": lambda: offshoot.vote(llm, question, 2, answer="x", seed="a"),
        "answer": lambda: offshoot.vote(llm, question, 2, answer=5),
        "n": lambda: offshoot.vote(llm, question, 10 ** 9, answer="x"),
        "stop_when": lambda: offshoot.vote(llm, question, 2, answer="x", stop_when=1),
        "stop_when: expected a whole number": lambda: offshoot.vote(
            llm, question, 2, answer="x", stop_when={"window": 1}),
        "score": lambda: offshoot.best_of_n(llm, question, 2, score=5),
        "by": lambda: offshoot.best_of_n(llm, question, 2, by="best"),
        "value": lambda: offshoot.tree_of_thoughts(llm, question, value=5),
        "words": lambda: offshoot.tree_of_thoughts(
            llm, question, value=lambda path: "Is it good?", sampling_params=PARAMS),
        "answers": lambda: offshoot.tree_of_thoughts(llm, question, value=len, answers=-1),
        "thought_tokens": lambda: offshoot.tree_of_thoughts(llm, question, value=len, thought_tokens="a"),
        "select": lambda: offshoot.tree_of_thoughts(llm, question, value=len, select="best"),
        "aggregate": lambda: offshoot.beam_search(llm, question, aggregate="median"),
        "lookahead": lambda: offshoot.beam_search(llm, question, lookahead=-1),
        "references": lambda: offshoot.particle_gibbs(llm, question, samples=4, references=2),
        "samples": lambda: offshoot.particle_gibbs(llm, question, samples=5),
        "resampling": lambda: offshoot.particle_filtering(llm, question, resampling="residual"),
        "delimiter": lambda: offshoot.dvts(llm, question, delimiter=None),
        "exploration": lambda: offshoot.mcts(llm, question, exploration=float("nan")),
        "tokens": lambda: offshoot.mcts(llm, question, tokens=-1),
        "prompt 1": lambda: offshoot.vote(llm, [question, "a " * 9000], 2, answer="x", sampling_params=PARAMS),
    }.items():
        with pytest.raises((TypeError, ValueError), match=f"^{name}\\b"):
            search()


def test_settings_may_be_numbers_of_numpy(llm, question):
    few = numpy.int64(2)
    outcome = offshoot.tree_of_thoughts(
        llm, question, value=len, steps=few, breadth=few, thoughts=few, answers=few, answer_tokens=few,
        thought_tokens=few, sampling_params=PARAMS)
    assert outcome.best is not None
    assert offshoot.mcts(llm, question, score=len, samples=few, tokens=numpy.int64(40), widening=numpy.float32(1),
                         delimiter=".", most_steps=few, sampling_params=PARAMS).best is not None
    assert offshoot.vote(
        llm, question, few, answer=ANSWER, stop_when=numpy.float32(0.9), sampling_params=PARAMS).samples


def test_best_by_score(llm, question):
    outcome = offshoot.best_of_n(llm, question, 12, score=len, sampling_params=PARAMS)
    assert len(outcome.best.text) == max(len(sample.text) for sample in outcome.samples)
    assert outcome.scores == [len(sample.text) for sample in outcome.samples]


def test_exceptions_come_out_where_the_search_was_called(llm, question):
    class Mine(Exception):
        pass

    def raises(text):
        raise Mine("here")

    for search in (
        lambda: offshoot.best_of_n(llm, [question] * 4, 4, score=raises, sampling_params=PARAMS),
        lambda: offshoot.vote(llm, question, 4, answer=raises, sampling_params=PARAMS),
        lambda: offshoot.tree_of_thoughts(llm, question, value=raises, steps=2, sampling_params=PARAMS),
        lambda: offshoot.tree_of_thoughts(llm, question, value=len, propose=raises, sampling_params=PARAMS),
        lambda: offshoot.tree_of_thoughts(llm, question, value=len, state=raises, sampling_params=PARAMS),
        lambda: offshoot.beam_search(llm, question, score=raises, samples=4, sampling_params=PARAMS),
        lambda: offshoot.dvts(llm, question, score=raises, samples=4, sampling_params=PARAMS),
        lambda: offshoot.mcts(llm, question, score=raises, samples=4, sampling_params=PARAMS),
        lambda: offshoot.sample(llm, question, 4, grade=raises, sampling_params=PARAMS),
    ):
        with pytest.raises(Mine, match="here"):
            search()
    llm.generate(question, SamplingParams(max_tokens=1))
    assert llm.metrics()["running"] == 0, "the rest is cancelled"
    with pytest.raises(TypeError):
        offshoot.best_of_n(llm, question, 2, by="score")
    with pytest.raises(TypeError):
        offshoot.tree_of_thoughts(llm, question, value=lambda path: object(), sampling_params=PARAMS)


def test_a_tree_of_given_thoughts_finds_the_best_path(llm):
    def propose(path):
        return [f"{digit}" for digit in range(4)]

    def value(path):
        return sum(int(thought) for thought in path)

    outcome = offshoot.tree_of_thoughts(
        llm, "Digits:\n", propose=propose, value=value, steps=3, breadth=2, sampling_params=PARAMS)
    assert outcome.best.text.split() == ["3", "3", "3"]


def test_a_tree_of_sampled_thoughts(llm, question):
    paths = []

    def value(path):
        paths.append(list(path))
        return -len(path[-1])

    outcome = offshoot.tree_of_thoughts(
        llm, question, value=value, steps=2, breadth=2, thoughts=3, thought_stop=".", thought_tokens=30,
        sampling_params=PARAMS, seed=2)
    assert outcome.best is not None and {len(path) for path in paths} <= {1, 2} and paths
    again = offshoot.tree_of_thoughts(
        llm, question, value=lambda path: -len(path[-1]), steps=2, breadth=2, thoughts=3, thought_stop=".",
        thought_tokens=30, sampling_params=PARAMS, seed=2)
    assert [sample.text for sample in again.samples] == [sample.text for sample in outcome.samples]


def test_a_value_may_be_a_question_to_the_model(llm):
    asked = []

    def value(path):
        asked.append(path)
        return "Is it good?" if len(path) == 1 else 1.0

    outcome = offshoot.tree_of_thoughts(
        llm, "Words:\n", propose=lambda path: ["a", "b"], value=value, words={" yes": 1.0, " no": 0.0}, steps=2,
        breadth=2, sampling_params=PARAMS)
    assert outcome.best is not None and any(len(path) == 2 for path in asked)


def test_searches_over_steps(llm, question):
    for search in (offshoot.beam_search, offshoot.dvts):
        outcome = search(llm, question, score=lambda text: -len(text), samples=4, expansions=2, delimiter=".",
                         most_steps=3, sampling_params=PARAMS)
        assert outcome.best is not None
    outcome = offshoot.mcts(llm, question, score=lambda text: float("7" in text), samples=6, delimiter=".",
                            most_steps=3, sampling_params=PARAMS)
    assert outcome.best is not None and outcome.nodes > 6


def test_the_judge():
    problem = {"task_id": "T/0", "prompt": "def add(a, b):\n", "entry_point": "add",
               "canonical_solution": "    return a + b\n",
               "test": "def check(candidate):\n    assert candidate(2, 3) == 5\n"}
    right, wrong = offshoot.judge(problem, ["    return a + b\n", "    return a - b\n"])
    assert right.accepted and bool(right) and not wrong.accepted
    assert [test.verdict for test in right.tests + wrong.tests] == ["AC", "WA"]
    assert right.tests[0].message is None and wrong.tests[0].message
    with pytest.raises(ValueError):
        offshoot.judge({"nothing": 1}, "pass")
    with pytest.raises(TypeError):
        offshoot.judge("problem", "pass")
    for wrong in (None, [None], b"pass"):
        with pytest.raises(TypeError, match="^programs: expected"):
            offshoot.judge(problem, wrong)


def test_one_withheld_file_is_a_file(monkeypatch, tmp_path):
    asked = []
    monkeypatch.setattr("offshoot.judging.NativeJudge", lambda command, *, withheld, **more: asked.append(withheld))
    for withheld in (str(tmp_path), tmp_path, [tmp_path]):
        offshoot.Judge(withheld=withheld)
    assert asked == [[str(tmp_path)]] * 3


def test_a_task_runs_from_a_dict(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "items.jsonl").write_text(
        '{"question": "Mia has 3 pens and buys 4 more. How many pens does Mia have now?"}\n')
    task = {
        "name": "pens", "model": offshoot.demo_model(), "items": {"path": "items.jsonl"},
        "prompt": {"item": "Question: {{question}}\nAnswer:"}, "method": {"self_consistency": {"samples": 4}},
        "sampling": {"max_tokens": 40, "stop": ["\n\n"], "seed": 1}, "answer": {"regex": "= (\\d+)"}}
    job = offshoot.run(task, device="cpu", show=False)
    assert len(job.samples) == 4 and len(job.items) == 1 and job.to_arrow().num_rows == 4
    assert job.to_arrow()["text"].to_pylist() == [sample["text"] for sample in job.samples]
    assert not list(tmp_path.glob(".offshoot-task-*"))
    assert fits(job.summary, offshoot.RunSummary) and job["samples"] == 4
    assert fits(job.samples, list[offshoot.SampleLine]) and fits(job.items, list[offshoot.ItemLine])
    assert fits(offshoot.plan(task), offshoot.JobEstimate)
    assert fits(offshoot.plan(task, parts=2, explain=True), offshoot.JobEstimate)
    with pytest.raises(ValueError, match="self_consistensy|unknown|expected"):
        offshoot.run({**task, "method": {"self_consistensy": {}}}, show=False)
    with pytest.raises(TypeError, match="JSON"):
        offshoot.run({**task, "name": object()}, show=False)
    with pytest.raises(ValueError, match="^the task: `items`"):
        offshoot.run({}, show=False)
    with pytest.raises(ValueError, match="--colour"):
        offshoot.run(task, colour=3, show=False)
    assert not list(tmp_path.glob(".offshoot-task-*"))
