"""``LLM.generate`` and what is like it: shapes as vLLM's, the same samples for the same seed, sharing, wrong input."""

import asyncio
import gc
import math
import warnings

import numpy
import pytest

import offshoot
from offshoot import LLM, SamplingParams


def texts(outputs):
    return [[output.text for output in request.outputs] for request in outputs]


def test_outputs_have_the_fields_of_vllm(llm, question):
    params = SamplingParams(n=3, max_tokens=24, seed=7, logprobs=2, prompt_logprobs=1, stop=["\n\n"])
    (request,) = llm.generate(question, params, use_tqdm=False)
    assert request.prompt == question and request.finished
    assert request.prompt_token_ids == llm.get_tokenizer().encode(question)
    assert [output.index for output in request.outputs] == [0, 1, 2]
    assert request.prompt_logprobs[0] is None and len(request.prompt_logprobs) == len(request.prompt_token_ids)
    for token, row in zip(request.prompt_token_ids[1:], request.prompt_logprobs[1:]):
        assert token in row
    for output in request.outputs:
        assert output.finish_reason in ("stop", "length")
        assert len(output.logprobs) == len(output.token_ids)
        for token, row in zip(output.token_ids, output.logprobs):
            assert token in row and 2 <= len(row) <= 3
            ranked = sorted((entry for entry in row.values() if entry.rank), key=lambda entry: entry.rank)
            assert [entry.logprob for entry in ranked] == sorted((e.logprob for e in ranked), reverse=True)
        total = sum(row[token].logprob for token, row in zip(output.token_ids, output.logprobs))
        assert math.isclose(total, output.cumulative_logprob, rel_tol=1e-5, abs_tol=1e-4)


def test_the_stop_token_ends_the_token_ids(llm, question):
    eos = llm.get_tokenizer().eos_token_id
    ended = [output for output in llm.generate(question, SamplingParams(n=16, max_tokens=200, seed=1))[0].outputs
             if output.finish_reason == "stop"]
    assert ended, "the demo model ends its answers"
    for output in ended:
        assert output.token_ids[-1] in llm.facts["eos"] and output.stop_reason is None
    assert eos in llm.facts["eos"]
    (request,) = llm.generate(question, SamplingParams(max_tokens=64, temperature=0, stop=["="]))
    assert request.outputs[0].stop_reason == "=" and "=" not in request.outputs[0].text
    params = SamplingParams(max_tokens=64, temperature=0, stop=["="], include_stop_str_in_output=True)
    assert llm.generate(question, params)[0].outputs[0].text.endswith("=")


def test_a_seed_gives_the_same_samples_alone_among_others_and_with_more(llm, question):
    params = SamplingParams(n=4, max_tokens=20, seed=3, temperature=2)
    alone = texts(llm.generate(question, params))[0]
    others = [f"Question: {name} has 5 cups.\nAnswer:" for name in ("Tom", "Ann", "Eve")]
    assert texts(llm.generate([*others, question], params))[3] == alone
    assert texts(llm.generate(question, SamplingParams(n=9, max_tokens=20, seed=3, temperature=2)))[0][:4] == alone
    by_ids = {"prompt_token_ids": llm.get_tokenizer().encode(question)}
    assert texts(llm.generate(by_ids, params))[0] == alone
    assert texts(llm.generate(numpy.array(by_ids["prompt_token_ids"]), params))[0] == alone
    assert len(set(alone)) > 1, "samples of one prompt differ"


def test_without_a_seed_calls_differ_and_a_new_llm_repeats_them(question):
    params = SamplingParams(n=2, max_tokens=16, temperature=2)
    runs = []
    for _ in range(2):
        with LLM(offshoot.demo_model(), device="cpu", kv_memory=64, seed=11) as llm:
            runs.append([texts(llm.generate(question, params)), texts(llm.generate(question, params))])
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[0][1]


def test_each_prompt_may_have_parameters_of_its_own(llm, question):
    one, two = llm.generate([question, question], [SamplingParams(max_tokens=2), SamplingParams(n=2, max_tokens=5)])
    assert len(one.outputs) == 1 and len(one.outputs[0].token_ids) <= 2
    assert len(two.outputs) == 2
    with pytest.raises(ValueError, match="one for each prompt"):
        llm.generate([question], [SamplingParams(), SamplingParams()])


def test_best_of_returns_the_likeliest(llm, question):
    every = llm.generate(question, SamplingParams(n=8, max_tokens=20, seed=5, temperature=2))[0].outputs
    best = llm.generate(question, SamplingParams(n=2, best_of=8, max_tokens=20, seed=5, temperature=2))[0].outputs
    wanted = sorted(every, key=lambda output: -output.cumulative_logprob)[:2]
    assert [output.text for output in best] == [output.text for output in wanted]
    assert [output.index for output in best] == [0, 1]


def test_the_prompt_is_computed_once_for_all_samples(llm):
    prompt = "Question: Zoe has 8 maps and finds 5 more. How many maps does Zoe have now?\nAnswer:"
    before = llm.metrics()
    llm.generate(prompt, SamplingParams(n=64, max_tokens=8))
    after = llm.metrics()
    tokens = len(llm.encode(prompt))
    assert after["prompt_tokens_logical"] - before["prompt_tokens_logical"] == 64 * tokens
    assert after["prompt_tokens_computed"] - before["prompt_tokens_computed"] <= tokens


def test_streams_give_the_same_text_and_the_whole_output_last(llm, question):
    params = SamplingParams(n=3, max_tokens=20, seed=2)
    whole = texts(llm.generate(question, params))[0]
    pieces, ends = ["", "", ""], {}
    for item in llm.stream(question, params):
        pieces[item.index] += item.text
        if item.output:
            ends[item.index] = item.output
    assert [ends[index].text for index in range(3)] == whole
    for index in range(3):
        assert whole[index].startswith(pieces[index]) or pieces[index] == whole[index]

    async def asynchronous():
        return {item.index: item.output.text async for item in llm.astream(question, params) if item.output}

    assert [asyncio.run(asynchronous())[index] for index in range(3)] == whole


def test_a_dropped_stream_ends_its_samples(llm, question):
    stream = llm.stream(question, SamplingParams(n=32, max_tokens=400, ignore_eos=True))
    next(stream)
    assert llm.metrics()["branches"] > 0
    stream.close()
    del stream
    gc.collect()
    llm.generate(question, SamplingParams(max_tokens=1))
    assert llm.metrics()["running"] == 0


def test_many_threads_share_one_engine(llm, question):
    from concurrent.futures import ThreadPoolExecutor

    params = SamplingParams(n=2, max_tokens=12, seed=9)
    alone = texts(llm.generate(question, params))
    with ThreadPoolExecutor(8) as pool:
        every = list(pool.map(lambda _: texts(llm.generate(question, params)), range(24)))
    assert every == [alone] * 24


def test_scores_are_those_of_prompt_logprobs(llm, question):
    choices = [" Then Mia has 3 + 4 = 7 pens.", " Then Mia has 3 + 4 = 8 pens."]
    scored = llm.score(question, choices)
    assert [choice.text for choice in scored.choices] == choices
    assert scored.best == 0 and math.isclose(sum(scored.probabilities), 1.0)
    for choice in scored.choices:
        (request,) = llm.generate(
            {"prompt_token_ids": [*scored.prompt_token_ids, *choice.token_ids]},
            SamplingParams(max_tokens=1, prompt_logprobs=0))
        rows = list(zip(request.prompt_token_ids, request.prompt_logprobs))[len(scored.prompt_token_ids):]
        assert [row[token].logprob for token, row in rows] == pytest.approx(choice.logprobs, abs=1e-5)
    both = llm.score([question, question], choices)
    assert [[choice.logprob for choice in each.choices] for each in both] == [[c.logprob for c in scored.choices]] * 2


def test_tokens_and_texts(llm):
    tokenizer = llm.get_tokenizer()
    ids = tokenizer("one two")["input_ids"]
    assert offshoot.Tokenizer.of_folder(llm.model)("one two")["input_ids"] == ids  # Without the model, the same.
    assert tokenizer.decode(ids, skip_special_tokens=True).strip() == "one two"
    assert len(tokenizer.convert_ids_to_tokens(ids)) == len(ids)
    with pytest.raises(ValueError, match="token ids"):
        tokenizer.decode([1 << 30])


def test_a_chat_by_a_template_of_ones_own(llm):
    tokenizer = llm.get_tokenizer()
    own = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
    talk = [{"role": "user", "content": "Hi"}]
    with pytest.raises(ValueError, match="no chat template"):
        tokenizer.apply_chat_template(talk, tokenize=False)
    assert tokenizer.apply_chat_template(talk, chat_template=own, tokenize=False) == "user: Hi\n"
    both = tokenizer.apply_chat_template([talk, talk], chat_template=own, tokenize=False, add_generation_prompt=True)
    assert both == ["user: Hi\nA:"] * 2
    going = [*talk, {"role": "assistant", "content": "Hel"}]
    text = tokenizer.apply_chat_template(going, chat_template=own, tokenize=False, continue_final_message=True)
    assert text == "user: Hi\nassistant: Hel"
    (request,) = llm.chat(talk, SamplingParams(max_tokens=4), chat_template=own, use_tqdm=False)
    assert request.prompt == "user: Hi\nA:" and request.outputs
    tokenizer.chat_template = own
    try:
        assert llm.chat([talk, talk], SamplingParams(max_tokens=1))[1].prompt == "user: Hi\nA:"
    finally:
        tokenizer.chat_template = None
    with pytest.raises(ValueError, match="chat template"):
        tokenizer.apply_chat_template(talk, chat_template="{% if %}", tokenize=False)


def test_tables(llm, question):
    table = offshoot.to_arrow(llm.generate([question] * 2, SamplingParams(n=2, max_tokens=4)))
    assert table.num_rows == 4 and set(table["index"].to_pylist()) == {0, 1}
    assert list(table.to_pandas()["finish_reason"])


@pytest.mark.parametrize("wrong, kind", [
    (dict(n=0), ValueError), (dict(n=1.5), TypeError), (dict(n=True), TypeError), (dict(temperature=-1), ValueError),
    (dict(temperature="hot"), TypeError), (dict(top_p=0), ValueError), (dict(max_tokens=0), ValueError),
    (dict(stop=[""]), ValueError), (dict(best_of=1, n=2), ValueError), (dict(logprobs=-1), NotImplementedError),
    (dict(guided_decoding={"json": {}}), NotImplementedError), (dict(bad_words=["x"]), NotImplementedError),
    (dict(temprature=1), TypeError), (dict(min_tokens=9, max_tokens=4), ValueError), (dict(top_k=2 ** 40), OverflowError),
])
def test_wrong_parameters(wrong, kind):
    with pytest.raises(kind):
        SamplingParams(**wrong)


def test_numbers_of_numpy_are_numbers(llm, question):
    params = SamplingParams(n=numpy.int64(2), temperature=numpy.float32(0.5), max_tokens=numpy.int32(3), seed=numpy.uint8(4))
    assert len(llm.generate(question, params)[0].outputs) == 2


@pytest.mark.parametrize("prompts, kind", [
    (None, TypeError), ([None], TypeError), ([3.5], TypeError), ({"text": "a"}, TypeError), ([[]], TypeError),
    ([[-1]], ValueError), ([[1 << 31]], ValueError), ("\ud800", UnicodeEncodeError), ([{"multi_modal_data": {}, "prompt": "a"}],
    NotImplementedError), ("long " * 100_000, ValueError),
])
def test_wrong_prompts(llm, prompts, kind):
    with pytest.raises(kind):
        llm.generate(prompts, SamplingParams(max_tokens=2))


def test_nothing_gives_nothing(llm):
    assert llm.generate([], SamplingParams()) == []


def test_models_that_cannot_be_loaded(tmp_path):
    with pytest.raises(FileNotFoundError):
        LLM(tmp_path / "absent")
    with pytest.raises(TypeError):
        LLM(None)
    with pytest.raises(NotImplementedError, match="tensor_parallel_size"):
        LLM(offshoot.demo_model(), tensor_parallel_size=2)
    with pytest.raises(NotImplementedError, match="dtype"):
        LLM(offshoot.demo_model(), dtype="float64")
    with pytest.raises(TypeError, match="gpu_memory_utilisation"):
        LLM(offshoot.demo_model(), gpu_memory_utilisation=0.5)
    with pytest.raises(MemoryError):
        LLM(offshoot.demo_model(), device="cpu", kv_memory=1 << 30)
    with pytest.raises(ValueError, match="device"):
        LLM(offshoot.demo_model(), device="gpu")


def test_what_has_no_meaning_is_said_once():
    with pytest.warns(UserWarning, match="enforce_eager, trust_remote_code") as said:
        LLM(offshoot.demo_model(), device="cpu", kv_memory=64, trust_remote_code=True, enforce_eager=True).close()
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LLM(offshoot.demo_model(), device="cpu", kv_memory=64, dtype="auto", gpu_memory_utilization=0.9).close()


def test_a_closed_llm_says_so(question):
    llm = LLM(offshoot.demo_model(), device="cpu", kv_memory=64)
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate(question)
