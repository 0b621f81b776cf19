"""Scorers: what they make of answers, vLLM's methods for models that score, and searches by them. The scorer is the
bundled model, by the probability of one word against another behind a text."""

import json
import math
import os
import shutil
import sys
import types

import numpy
import pytest

import offshoot
from offshoot import SamplingParams

FORM = {
    "text": {"plain": {"text": "{{question}}{{answer}}", "special_tokens": True, "read": {"end": {}}}},
    "output": {"words": {"good": [" +"], "bad": [" -"]}},
}
ANSWERS = [" Then Mia has 3", " Then Mia", " Mia"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The bundled model as a scorer."""
    path = tmp_path_factory.mktemp("scorer")
    for name in os.listdir(offshoot.demo_model()):
        source = os.path.join(offshoot.demo_model(), name)
        if os.path.isfile(source):
            shutil.copy(source, path)
    (path / "scorer.json").write_text(json.dumps(FORM))
    return path


@pytest.fixture(scope="module")
def scorer(folder):
    with offshoot.Scorer(folder, device="cpu", kv_memory=64) as scorer:
        yield scorer


def expected(llm, text):
    """The probability of " +" against " -" behind a text."""
    plus, minus = (choice.logprob for choice in llm.score(text, [" +", " -"]).choices)
    return 1 / (1 + math.exp(minus - plus))


def test_answers_are_scored_by_the_form(llm, scorer, question):
    rated = scorer.rate(question, ANSWERS)
    for each, answer in zip(rated, ANSWERS):
        assert each.error is None and abs(each.score - expected(llm, question + answer)) < 1e-4
        assert each.probability == each.score and each.scores == [each.score] and each.steps == [each.score]
    assert scorer.facts["scale"] == "probability" and scorer.facts["values"] == 2
    assert scorer.score(question, ANSWERS) == [each.score for each in rated]
    assert scorer.score(question, ANSWERS[0]) == rated[0].score
    # search-and-learn's reward models: questions, and for each its answers; a list of steps' scores for each.
    assert scorer.score([question, question], [ANSWERS[:2], ANSWERS[2:]]) == [
        [[rated[0].score], [rated[1].score]], [[rated[2].score]]]
    # A conversation, and an answer in steps.
    chat = [{"role": "user", "content": question}]
    assert scorer.rate(chat, [[" Then", " Mia has 3"]])[0].steps == [None, rated[0].score]


def test_what_answers_share_is_computed_once(scorer, question):
    def computed(answers):
        before = scorer.metrics()["prompt_tokens_computed"]
        rated = scorer.rate("Tom has 5 red pens. " + question, answers)
        return scorer.metrics()["prompt_tokens_computed"] - before, sum(each.tokens for each in rated)

    first, whole = computed([ANSWERS[0]])
    assert whole / 2 < first <= whole
    again, all_of_them = computed([ANSWERS[0] + " +", ANSWERS[0] + " -"])
    assert again < all_of_them / 4


def test_vllms_methods_for_models_that_score(llm, folder, question):
    with offshoot.LLM(folder, runner="pooling", device="cpu", kv_memory=64, seed=3) as pooling:
        text = question + ANSWERS[0]
        good = expected(llm, text)
        (classes,) = pooling.classify(text)
        assert abs(classes.outputs.probs[1] - good) < 1e-4 and classes.outputs.num_classes == 2
        ids = pooling.get_tokenizer().encode(text)
        assert classes.prompt_token_ids == ids and classes.finished
        both = pooling.encode([text, {"prompt_token_ids": ids}], pooling_task="classify")
        assert all(isinstance(each.outputs.data, numpy.ndarray) and each.outputs.data.shape == (2,) for each in both)
        assert both[0].outputs.data[1] == both[1].outputs.data[1]
        rows = pooling.reward([text])[0].outputs.data
        assert rows.shape == (len(ids), 2) and abs(rows[-1][1].item() - good) < 1e-4
        pairs = pooling.score(question, ANSWERS)
        assert abs(pairs[0].outputs.score - good) < 1e-4 and len(pairs) == 3
        raw = pooling.classify(text, pooling_params=offshoot.PoolingParams(use_activation=False))
        plus, minus = raw[0].outputs.probs[1], raw[0].outputs.probs[0]
        assert abs(1 / (1 + math.exp(minus - plus)) - good) < 1e-4
        for name in ("generate", "chat", "tree"):
            with pytest.raises(ValueError, match="scores texts"):
                getattr(pooling, name)("a")
        with pytest.raises(ValueError, match="pooling_task"):
            pooling.encode(text)
        with pytest.raises(ValueError, match="task"):
            pooling.encode(text, pooling_task="embed")
        with pytest.raises(ValueError, match="makes no vectors"):
            pooling.embed(text)
        with pytest.raises(TypeError, match="max_lora"):
            offshoot.LLM(folder, runner="pooling", max_loras=2)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """The bundled model as an embedder of sentence-transformers' layout."""
    path = tmp_path_factory.mktemp("embedder")
    for name in os.listdir(offshoot.demo_model()):
        source = os.path.join(offshoot.demo_model(), name)
        if os.path.isfile(source):
            shutil.copy(source, path)
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in
               (("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize"))]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_lasttoken": True}))
    return path


def test_vectors_under_vllms_names(vectors, question):
    with offshoot.LLM(vectors, device="cpu", kv_memory=64) as llm:
        ids = llm.get_tokenizer().encode(question)
        one, same, other = llm.embed([question, {"prompt_token_ids": ids}, ANSWERS[0]], use_tqdm=False)
        assert isinstance(one, offshoot.EmbeddingRequestOutput) and one.prompt_token_ids == ids and one.finished
        assert one.outputs.hidden_size == 256 and all(isinstance(x, float) for x in one.outputs.embedding)
        assert abs(sum(x * x for x in one.outputs.embedding) - 1) < 1e-6
        assert same.outputs.embedding == one.outputs.embedding != other.outputs.embedding
        (encoded,) = llm.encode(question, pooling_task="embed")
        assert numpy.allclose(encoded.outputs.data, one.outputs.embedding, atol=1e-6)
        cosine = sum(a * b for a, b in zip(one.outputs.embedding, other.outputs.embedding))
        (pair,) = llm.score(question, ANSWERS[0])
        assert abs(pair.outputs.score - cosine) < 1e-6
        (raw,) = llm.embed(question, pooling_params=offshoot.PoolingParams(use_activation=False))
        norm = math.sqrt(sum(x * x for x in raw.outputs.embedding))
        assert abs(norm - 1) > 1e-3
        assert numpy.allclose([x / norm for x in raw.outputs.embedding], one.outputs.embedding, atol=1e-5)
        (cut,) = llm.embed(question, tokenization_kwargs={"truncate_prompt_tokens": 3})
        assert cut.prompt_token_ids == ids[:3]
        assert llm.facts["values"] == 256 and llm.facts["normalises"] and llm.metrics()["prompt_tokens_computed"] > 0
        for name in ("generate", "chat", "tree"):
            with pytest.raises(ValueError, match="makes vectors of texts and samples none"):
                getattr(llm, name)("a")
        for name in ("classify", "reward"):
            with pytest.raises(ValueError, match="has no classes"):
                getattr(llm, name)("a")
        with pytest.raises(ValueError, match="pooling_task: expected embed"):
            llm.encode("a", pooling_task="classify")
        with pytest.raises(NotImplementedError, match="tokenization_kwargs.*padding"):
            llm.embed("a", tokenization_kwargs={"padding": True})
        with pytest.raises(NotImplementedError, match="lora_request"):
            llm.embed("a", lora_request=object())
        with pytest.raises(NotImplementedError, match="dimensions"):
            llm.embed("a", pooling_params=offshoot.PoolingParams(dimensions=8))
    with pytest.raises(RuntimeError, match="closed"):
        llm.embed("a")
    with pytest.raises(NotImplementedError, match="task"):
        offshoot.LLM(vectors, device="cpu", task="classify")


def test_any_model_makes_vectors_where_it_is_asked_to(question):
    with offshoot.LLM(offshoot.demo_model(), convert="embed", device="cpu", kv_memory=64) as llm:
        (one,) = llm.embed(question)
        assert one.outputs.hidden_size == 256
    with pytest.raises(ValueError, match="form"):
        offshoot.LLM(offshoot.demo_model(), convert="embed", form="last-token", device="cpu")


def test_models_that_generate_say_that_they_do_not_pool(llm):
    assert llm.encode("1") == llm.get_tokenizer().encode("1")
    for call in (lambda: llm.encode("1", pooling_task="classify"), lambda: llm.classify("1"), lambda: llm.reward("1"),
                 lambda: llm.embed("1")):
        with pytest.raises(ValueError, match="pooling"):
            call()
    with pytest.raises(ValueError, match='convert="embed"'):
        llm.embed("1")


def test_a_wrong_scorer_is_named(folder):
    with pytest.raises(ValueError, match="last-token"):
        offshoot.Scorer(folder, form="none-of-them", device="cpu")
    with pytest.raises(ValueError, match="column"):
        offshoot.Scorer(folder, form={**FORM, "output": {"colum": {}}}, device="cpu")
    with pytest.raises(FileNotFoundError):
        offshoot.Scorer(folder / "nothing", device="cpu")


def test_searches_choose_by_a_scorer(llm, scorer, question):
    params = SamplingParams(max_tokens=40, stop=["\n\n"])
    outcome = offshoot.best_of_n(llm, question, 8, scorer=scorer, sampling_params=params, seed=1)
    scored = [sample.score for sample in outcome.samples]
    assert outcome.best.score == max(scored)
    by_text = scorer.score(question, [sample.text for sample in outcome.samples])
    assert all(abs(own - whole) < 1e-6 for own, whole in zip(scored, by_text))
    again = offshoot.best_of_n(llm, [question], 8, scorer=scorer, sampling_params=params, seed=1)[0]
    assert again.chosen == outcome.chosen
    vote = offshoot.vote(llm, question, 8, answer=r"= (\d+)", scorer=scorer, sampling_params=params, seed=1)
    assert vote.votes and len(vote.samples) == 8
    for search in (offshoot.beam_search, offshoot.dvts, offshoot.particle_filtering):
        found = search(llm, question, samples=4, scorer=scorer, delimiter=".", most_steps=4, sampling_params=params)
        assert found.chosen is not None and found.best.text
    with pytest.raises(TypeError, match="scorer"):
        offshoot.best_of_n(llm, question, 2, scorer=scorer, score=len)
    with pytest.raises(TypeError, match="Scorer"):
        offshoot.best_of_n(llm, question, 2, scorer="reward")


def test_a_scorer_is_told_the_question(llm, scorer, question):
    params = SamplingParams(max_tokens=20)
    chat = [{"role": "user", "content": "Tom has 5 pens. " + question}]
    found = offshoot.best_of_n(llm, question, 4, scorer=scorer, question=chat, sampling_params=params)
    texts = [sample.text for sample in found.samples]
    assert [sample.score for sample in found.samples] == pytest.approx(scorer.score(chat, texts), abs=1e-6)
    ids = llm.encode(question)
    for search in (offshoot.best_of_n, offshoot.beam_search, offshoot.mcts, offshoot.particle_filtering):
        with pytest.raises(ValueError, match="question.*token ids"):
            search(llm, ids, scorer=scorer, sampling_params=params)
    told = offshoot.best_of_n(llm, [ids, ids], 4, scorer=scorer, question=[chat, question], sampling_params=params)
    assert [sample.score for sample in told[0].samples] == pytest.approx(
        scorer.score(chat, [sample.text for sample in told[0].samples]), abs=1e-6)
    [end] = llm.get_tokenizer().all_special_tokens[:1]
    with pytest.raises(ValueError, match="question.*special tokens"):
        offshoot.vote(llm, question + end, 2, answer=r"(\d+)", scorer=scorer)
    with pytest.raises(ValueError, match="one for each prompt"):
        offshoot.best_of_n(llm, [question, question], 2, scorer=scorer, question=question)
    with pytest.raises(TypeError, match="question"):
        offshoot.best_of_n(llm, question, 2, question=question)


def test_what_has_no_meaning_beside_a_scorer_is_refused(llm, scorer, question):
    with pytest.raises(TypeError, match="by: expected score"):
        offshoot.best_of_n(llm, question, 2, scorer=scorer, by="logprob")
    for by in ({"scorer": scorer}, {"score": len}):
        with pytest.raises(ValueError, match="stop_when_passed"):
            offshoot.best_of_n(llm, question, 2, stop_when_passed=True, **by)
    with pytest.raises(TypeError, match="aggregate"):
        offshoot.best_of_n(llm, question, 2, aggregate="min")


def test_the_form_says_how_steps_become_a_score(llm, folder, question):
    params = SamplingParams(max_tokens=40)
    parts = {"plain": {**FORM["text"]["plain"], "read": {"parts": {"separator": "\n"}}}}
    mean = {**FORM, "text": parts, "aggregate": "mean"}
    with offshoot.Scorer(folder, form=mean, device="cpu", kv_memory=64) as by_mean:
        for found in (
            offshoot.best_of_n(llm, question, 8, scorer=by_mean, sampling_params=params),
            offshoot.vote(llm, question, 8, answer=r"(\d+)", scorer=by_mean, sampling_params=params),
        ):
            steps = [[score for score in each.step_scores if score is not None] for each in found.samples]
            means = [sum(scores) / len(scores) for scores in steps]
            assert [each.score for each in found.samples] == pytest.approx(means)
            assert means != [scores[-1] for scores in steps]
    with offshoot.Scorer(folder, form={**FORM, "output": {"logit": {"token": 0}}}, device="cpu",
                         kv_memory=64) as logits:
        assert logits.facts["scale"] == "logit"
        for call in (
            lambda: logits.rate(question, ["7"], aggregate="product"),
            lambda: offshoot.best_of_n(llm, question, 2, scorer=logits, aggregate="product"),
            lambda: offshoot.beam_search(llm, question, samples=4, scorer=logits, aggregate="product"),
        ):
            with pytest.raises(ValueError, match="aggregate: expected last, min or mean.*logits"):
                call()


def test_its_hubs_reward_models(monkeypatch, scorer, question):
    """its_hub's interfaces, as its version 1.2 has them."""
    class Message:
        def __init__(self, role, content):
            self.role, self.content = role, content

        def extract_text_content(self):
            return self.content

    class Messages:
        def __init__(self, given):
            self.given = given

        @classmethod
        def from_prompt_or_messages(cls, given):
            return cls(given)

        def to_chat_messages(self):
            return [Message("user", self.given)] if isinstance(self.given, str) else self.given

    for name, members in (
        ("its_hub", {}), ("its_hub.api", {}), ("its_hub.api.reward_models", {}),
        ("its_hub.api.types", {"ChatMessages": Messages}),
        ("its_hub.api.reward_models.prm", {"AbstractProcessRewardModel": object}),
        ("its_hub.api.reward_models.orm", {"AbstractOutcomeRewardModel": object}),
    ):
        monkeypatch.setitem(sys.modules, name, types.SimpleNamespace(**members))
    monkeypatch.delitem(sys.modules, "offshoot.its_hub", raising=False)
    import asyncio
    import importlib

    adapter = importlib.import_module("offshoot.its_hub")
    process, outcome = adapter.ProcessReward(scorer), adapter.OutcomeReward(scorer)
    scores = scorer.score(question, ANSWERS)
    assert asyncio.run(process.ascore(question, ANSWERS)) == scores
    assert process.score(question, ANSWERS[0]) == scores[0]
    chats = [[Message("user", question), Message("assistant", answer)] for answer in ANSWERS]
    assert asyncio.run(outcome.ascore(chats, orchestrator=None)) == scores
    assert outcome.score(chats[1]) == scores[1]
    # An answer that is too long ends nothing.
    with pytest.warns(UserWarning, match="1 of 2 answers have no score and count as 0.*context"):
        assert process.score(question, [ANSWERS[0], " 7" * 5000]) == [scores[0], 0.0]
    with pytest.raises(ValueError, match="no score"):
        adapter.ProcessReward(scorer, strict=True).score(question, [" 7" * 5000])
    monkeypatch.delitem(sys.modules, "offshoot.its_hub", raising=False)


def test_a_scorer_beside_the_model(folder, question):
    with offshoot.LLM(offshoot.demo_model(), device="cpu", kv_memory=128, scorer=folder) as llm:
        scores = llm.scorer.score(question, ANSWERS)
        assert all(abs(score - expected(llm, question + answer)) < 1e-4 for score, answer in zip(scores, ANSWERS))
        outcome = offshoot.best_of_n(
            llm, question, 4, scorer=llm.scorer, sampling_params=SamplingParams(max_tokens=20))
        assert outcome.best.score is not None
        with pytest.raises(ValueError, match="llm.scorer"):
            llm.classify("1")
