"""``LLM.generate`` and what is like it: shapes as vLLM's, the same samples for the same seed, sharing, wrong input."""

import asyncio
import dataclasses
import gc
import itertools
import json
import math
import pathlib
import pickle
import shutil
import sys
import time
import warnings

import numpy
import pytest

import offshoot
from offshoot import LLM, EngineFacts, EngineMetrics, PageCounts, SamplingParams, _vllm
from offshoot.logprobs import FlatLogprobs
from offshoot.lora.request import LoRARequest
from offshoot.sampling_params import RequestOutputKind, StructuredOutputsParams


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


def test_the_sampled_token_comes_first_among_the_log_probabilities(llm, question):
    (request,) = llm.generate(
        question, SamplingParams(max_tokens=40, temperature=3, seed=1, logprobs=True, prompt_logprobs=2))
    (output,) = request.outputs
    assert any(row[token].rank > 20 for token, row in zip(output.token_ids, output.logprobs)), "an unlikely token"
    assert [next(iter(row)) for row in output.logprobs] == output.token_ids
    assert [next(iter(row)) for row in request.prompt_logprobs[1:]] == request.prompt_token_ids[1:]


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


def test_facts_and_metrics_have_the_fields_of_their_types(llm):
    metrics = llm.metrics()
    assert metrics.keys() == EngineMetrics.__annotations__.keys()
    assert metrics["pages"].keys() == PageCounts.__annotations__.keys()
    assert llm.facts.keys() == EngineFacts.__annotations__.keys()


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


def test_the_error_of_a_prompt_names_its_number(tmp_path):
    model = tmp_path / "model"
    shutil.copytree(offshoot.demo_model(), model)
    tokens = model / "tokenizer.json"
    tokens.write_text(tokens.read_text().replace('"7":', '"seven":'))
    with LLM(str(model), device="cpu", kv_memory=64) as llm:
        texts = ["one 1", {"prompt_token_ids": llm.encode("1")}, "seven 7"]
        for call in (
            lambda: llm.generate(texts), lambda: llm.get_tokenizer()(["1", "2", "7"]),
            lambda: llm.score(["1", "2", "seven 7"], [["a"]] * 3),
        ):
            with pytest.raises(ValueError, match="prompt 2: the tokenizer has no token for '7'"):
                call()
        with pytest.raises(ValueError, match=": the tokenizer has no token for '7'"):
            llm.encode("7")
        assert llm.generate(texts[:2], SamplingParams(max_tokens=1))


def test_a_tokenizer_refuses_what_it_would_have_to_ignore(llm):
    tokenizer = llm.get_tokenizer()
    encoded = tokenizer("one two three", truncation=True, max_length=2)
    assert encoded.input_ids == encoded["input_ids"] == tokenizer.encode("one two three")[:2]
    for more in ({"return_tensors": "pt"}, {"padding": True}):
        with pytest.raises(NotImplementedError, match=next(iter(more))):
            tokenizer("one two", **more)
        with pytest.raises(NotImplementedError, match=next(iter(more))):
            tokenizer.apply_chat_template([{"role": "user", "content": "a"}], **more)
    with pytest.raises(TypeError, match="stride"):
        tokenizer("one", stride=2)
    for wrong in (1 << 20, [5, 1 << 20]):
        with pytest.raises(ValueError, match="token ids: expected numbers below"):
            tokenizer.convert_ids_to_tokens(wrong)
    number = numpy.int64(tokenizer.encode("x", add_special_tokens=False)[0])
    assert tokenizer.decode(number) == tokenizer.convert_ids_to_tokens(number) == "x"
    assert tokenizer.convert_tokens_to_ids("x") == number == tokenizer.get_vocab()["x"]
    assert tokenizer.convert_tokens_to_ids(["x", "no such token"]) == [number, None]
    tokenizer.pad_token = tokenizer.eos_token
    assert tokenizer.pad_token_id == tokenizer.eos_token_id
    assert tokenizer.tokenize("a b") == ["a", " b"]
    both = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], chat_template="{{ messages[0].content }}",
                                         return_dict=True)
    assert both.input_ids == tokenizer.encode("a", add_special_tokens=False) and both.attention_mask == [1]


def test_defaults_are_those_of_the_model_s_generation_config(llm, tmp_path):
    assert llm.get_default_sampling_params() == SamplingParams(temperature=0.8), "the demo model's own"
    (tmp_path / "generation_config.json").write_text('{"top_k": 7, "max_new_tokens": 3, "temperature": null}')
    for more, expected in (
        ({"generation_config": "vllm"}, SamplingParams()),
        ({"generation_config": tmp_path}, SamplingParams(top_k=7, max_tokens=3)),
        ({"override_generation_config": {"top_p": 0.5}}, SamplingParams(temperature=0.8, top_p=0.5)),
    ):
        with LLM(offshoot.demo_model(), device="cpu", kv_memory=64, **more) as other:
            assert other.get_default_sampling_params() == expected
            assert len(other.generate("Question:")[0].outputs[0].token_ids) <= expected.max_tokens
    with pytest.raises(FileNotFoundError):
        LLM(offshoot.demo_model(), device="cpu", kv_memory=64, generation_config=tmp_path / "absent")


def test_a_cancelled_task_ends_its_samples(llm, question):
    endless = SamplingParams(n=8, max_tokens=3500, ignore_eos=True)

    async def impatient():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(llm.agenerate(question, endless), 0.3)

    before = llm.metrics()["tokens_sampled"]
    asyncio.run(impatient())
    end = time.monotonic() + 60
    while llm.metrics()["running"] and time.monotonic() < end:
        time.sleep(0.01)
    assert llm.metrics()["running"] == 0
    assert llm.metrics()["tokens_sampled"] - before < 8 * 3500, "not all of them were drawn"

    async def many():
        return await asyncio.gather(
            *[llm.agenerate(question, SamplingParams(max_tokens=4, seed=at)) for at in range(100)])

    alone = [llm.generate(question, SamplingParams(max_tokens=4, seed=at))[0].outputs[0].text for at in range(100)]
    assert [requests[0].outputs[0].text for requests in asyncio.run(many())] == alone


def test_a_chat_by_a_template_of_ones_own(llm):
    tokenizer = llm.get_tokenizer()
    own = ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
           "{% if add_generation_prompt %}A:{% endif %}")
    talk = [{"role": "user", "content": "Hi"}]
    assert tokenizer.apply_chat_template(talk, tokenize=False) == "<|begin_of_text|>Question: Hi\n"
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


def test_templates_see_messages_as_transformers_and_as_vllm_give_them(llm):
    shows = "{{ messages | tojson }}{{ tools | tojson }}"
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 3}'}}
    said = {"content": None, "role": "assistant", "reasoning": "so", "tool_calls": [call]}
    talk = [said, {"role": "user", "content": "x"}]
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    tokenizer = llm.get_tokenizer()
    text = tokenizer.apply_chat_template(talk, chat_template=shows, tools=[tool], tokenize=False)
    names = {"reasoning_content": "so", "thinking": "so"}
    written = {"role": "assistant", "reasoning": "so", "tool_calls": [call]} | names
    assert text == json.dumps([written, talk[1]]) + json.dumps([tool]), "as they are written, but for null fields"
    with pytest.raises(NotImplementedError, match="tools: expected dicts"):
        tokenizer.apply_chat_template(talk, tools=[len])
    (request,) = llm.chat(talk, SamplingParams(max_tokens=1), chat_template=shows, tools=[tool], use_tqdm=False)
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 3}}}
    seen = {"role": "assistant", "content": "", "reasoning": "so", "tool_calls": [call]}
    seen |= names
    assert request.prompt == json.dumps([seen, talk[1]]) + json.dumps([tool]), "as a server reads them"


def test_special_tokens_in_texts_are_text_where_that_is_asked_for(llm):
    tokenizer, end = llm.get_tokenizer(), "<|end_of_text|>"
    assert tokenizer.encode(f"a{end}")[-1] == 1
    split = tokenizer.encode(f"a{end}", split_special_tokens=True)
    assert split[0] == 0 and 1 not in split and tokenizer.decode(split[1:]) == f"a{end}"
    assert tokenizer(f"a{end}", split_special_tokens=True).input_ids == split
    talk = [{"role": "user", "content": f"a{end}"}]
    ends = {}
    for how in ("allow", "escape"):
        (request,) = llm.chat(talk, SamplingParams(max_tokens=1), use_tqdm=False, special_tokens_in_text=how)
        assert request.prompt == f"<|begin_of_text|>Question: a{end}\nAnswer:"
        ends[how] = request.prompt_token_ids.count(1)
    assert ends == {"allow": 1, "escape": 0}
    with pytest.raises(ValueError, match="without special tokens"):
        llm.chat(talk, SamplingParams(max_tokens=1), special_tokens_in_text="refuse")


def test_a_chat_with_the_bundled_model_ends(llm):
    question = "Mia has 3 pens and buys 4 more. How many pens does Mia have now?"
    talk = [{"role": "user", "content": question}]
    (request,) = llm.chat(talk, SamplingParams(temperature=0, max_tokens=100), use_tqdm=False)
    assert request.outputs[0].finish_reason == "stop" and "\n\n" not in request.outputs[0].text
    assert request.outputs[0].text.endswith("#### 7")


def test_every_sampled_token_has_a_rank_and_the_last_one_is_counted(llm, question):
    end = llm.get_tokenizer().eos_token_id
    for fields in (dict(logit_bias={end: 100}, min_tokens=12), dict(stop_token_ids=[end], ignore_eos=True,
                   logit_bias={end: 100}, min_tokens=12), dict(stop=["pens"], temperature=0), dict(temperature=3.0)):
        params = SamplingParams(n=2, max_tokens=40, seed=1, logprobs=0, prompt_logprobs=0, **fields)
        (request,) = llm.generate(question, params, use_tqdm=False)
        assert all(isinstance(entry.rank, int) for row in request.prompt_logprobs[1:] for entry in row.values())
        assert all(len(row) == 1 for row in request.prompt_logprobs[1:])
        for output in request.outputs:
            assert len(output.logprobs) == len(output.token_ids)
            ranks = [row[token].rank for row, token in zip(output.logprobs, output.token_ids)]
            assert all(isinstance(rank, int) and rank >= 1 for rank in ranks), ranks
            assert sum(row[token].logprob for row, token in zip(output.logprobs, output.token_ids)) == pytest.approx(
                output.cumulative_logprob)
        if "logit_bias" in fields:
            assert [(len(output.token_ids), output.token_ids[-1]) for output in request.outputs] == [(13, end)] * 2
            assert request.outputs[0].stop_reason == (end if "stop_token_ids" in fields else None)


def test_ranks_are_places_among_the_likeliest(llm, question):
    (request,) = llm.generate(question, SamplingParams(max_tokens=30, temperature=2.0, seed=3, logprobs=50))
    for row, token in zip(request.outputs[0].logprobs, request.outputs[0].token_ids):
        assert next(iter(row)) == token, "the sampled token comes first"
        ranked = sorted(row.values(), key=lambda entry: entry.rank)
        assert [entry.rank for entry in ranked][:50] == list(range(1, 51))
        assert all(a.logprob >= b.logprob for a, b in zip(ranked, ranked[1:]))


def test_tokens_and_words_that_are_left_out(llm, question):
    tokenizer = llm.get_tokenizer()
    (request,) = llm.generate(question, SamplingParams(max_tokens=40, temperature=0, bad_words=["Mia", " pens"]))
    assert "Mia" not in request.outputs[0].text and "pens" not in request.outputs[0].text
    digits = [tokenizer.encode(digit, add_special_tokens=False)[-1] for digit in "0123456789"]
    (request,) = llm.generate(question, SamplingParams(max_tokens=12, seed=1, allowed_token_ids=digits))
    assert set(request.outputs[0].token_ids) <= set(digits)
    params = SamplingParams(max_tokens=4)
    only_end = SamplingParams(allowed_token_ids=llm.facts["eos"], min_tokens=1)
    with pytest.raises(ValueError, match="allowed_token_ids: .* min_tokens bans 1"):
        llm.generate(question, only_end)
    params.allowed_token_ids = []
    with pytest.raises(ValueError, match="allowed_token_ids"):
        llm.generate(question, params)


def test_a_stream_adds_up_to_its_outputs(llm, question):
    end = llm.get_tokenizer().eos_token_id
    for fields in (dict(stop=["\n\n", "pens!"]), dict(logit_bias={end: 100}, min_tokens=9),
                   dict(logit_bias={end: 100}, min_tokens=9, skip_special_tokens=False,
                        include_stop_str_in_output=True)):
        params = SamplingParams(n=2, max_tokens=30, seed=5, **fields)
        texts, tokens, outputs = {}, {}, {}
        for part in llm.stream(question, params):
            texts[part.index] = texts.get(part.index, "") + part.text
            tokens.setdefault(part.index, []).extend(part.token_ids)
            if part.output is not None:
                outputs[part.index] = part.output
        assert len(outputs) == 2
        for index, output in outputs.items():
            assert (texts[index], tokens[index]) == (output.text, output.token_ids), fields
        (whole,) = llm.generate(question, params, use_tqdm=False)
        assert [output.token_ids for output in whole.outputs] == [outputs[0].token_ids, outputs[1].token_ids]
    assert "<|end_of_text|>" in outputs[0].text


def test_a_table_has_the_samples_of_generate(llm, question):
    params = SamplingParams(n=3, max_tokens=24, seed=7, logprobs=0, stop=["\n\n", " pens"])
    prompts = [question, question + " Mia"]
    outputs = [output for request in llm.generate(prompts, params, use_tqdm=False) for output in request.outputs]
    table = llm.generate_table(prompts, params, use_tqdm=False)
    assert table["prompt"].to_pylist() == [0, 0, 0, 1, 1, 1] and table["index"].to_pylist() == [0, 1, 2] * 2
    for column in ("text", "token_ids", "cumulative_logprob", "finish_reason", "stop_reason"):
        assert table[column].to_pylist() == [getattr(output, column) for output in outputs], column
    for logprobs, output in zip(table["logprobs"].to_pylist(), outputs):
        assert logprobs == [row[token].logprob for row, token in zip(output.logprobs, output.token_ids)]
    for wrong in (SamplingParams(prompt_logprobs=1), SamplingParams(n=1, best_of=2)):
        with pytest.raises(NotImplementedError, match="a table of samples"):
            llm.generate_table(question, wrong)
    with pytest.raises(ValueError, match="prompt 0 has"):
        llm.generate_table([[1] * (llm.max_model_len + 1)])


def test_tables(llm, question):
    table = offshoot.to_arrow(llm.generate([question] * 2, SamplingParams(n=2, max_tokens=4)))
    assert table.num_rows == 4 and set(table["index"].to_pylist()) == {0, 1}
    assert list(table.to_pandas()["finish_reason"])


#: Fields of ``SamplingParams`` that are refused.
WRONG = [
    (dict(n=0), ValueError), (dict(n=1.5), TypeError), (dict(n=True), TypeError), (dict(temperature=-1), ValueError),
    (dict(temperature="hot"), TypeError), (dict(top_p=0), ValueError), (dict(max_tokens=0), ValueError),
    (dict(stop=[""]), ValueError), (dict(best_of=1, n=2), ValueError), (dict(logprobs=-1), NotImplementedError),
    (dict(guided_decoding={"json": 7}), TypeError), (dict(bad_words=[" "]), ValueError),
    (dict(allowed_token_ids=[]), ValueError),
    (dict(temprature=1), TypeError), (dict(min_tokens=9, max_tokens=4), ValueError),
    (dict(top_k=2 ** 40), OverflowError),
    (dict(use_beam_search=True), NotImplementedError), (dict(n=10 ** 9), ValueError), (dict(stop=5), TypeError),
    (dict(stop_token_ids=5), TypeError), (dict(presence_penalty=float("nan")), ValueError),
    (dict(frequency_penalty=3), ValueError), (dict(repetition_penalty=0), ValueError),
    (dict(logit_bias=[1]), TypeError), (dict(logit_bias={"a": 1}), TypeError),
    (dict(truncate_prompt_tokens="all"), TypeError),
    (dict(presence_penalty=99.0), ValueError), (dict(seed=1.5), TypeError), (dict(min_p=7.0), ValueError),
    (dict(top_p=5.0), ValueError), (dict(best_of=0), ValueError), (dict(stop=""), ValueError),
    (dict(logits_processors=[lambda ids, logits: logits]), NotImplementedError),
    (dict(structured_outputs={"structural_tag": "{}"}), NotImplementedError),
    (dict(structured_outputs={"regex": "a", "choice": ["b"]}), ValueError),
    (dict(structured_outputs={"patern": "a"}), TypeError), (dict(structured_outputs="a+"), TypeError),
    (dict(structured_outputs={"choice": []}), ValueError), (dict(structured_outputs={"json": "{"}), ValueError),
    (dict(extra_args={"conf_threshold": 1.0}), ValueError), (dict(ignore_eos="no"), TypeError),
    (dict(detokenize=None), TypeError), (dict(flat_logprobs=2), TypeError), (dict(output_kind=3), ValueError),
    (dict(output_kind="delta"), TypeError), (dict(logit_bias={1: math.nan}), ValueError),
    (dict(logprob_token_ids=[1]), NotImplementedError), (dict(thinking_token_budget=0), NotImplementedError),
    (dict(prompt_logprob_token_ids=numpy.array([[1]])), NotImplementedError),
    (dict(watermarking=True), NotImplementedError), (dict(repetition_detection=object()), NotImplementedError),
]


@pytest.mark.parametrize("wrong, kind", WRONG)
def test_wrong_parameters(wrong, kind):
    with pytest.raises(kind, match="|".join(wrong)) if kind is not OverflowError else pytest.raises(kind):
        SamplingParams(**wrong)


@pytest.mark.parametrize("wrong, kind", WRONG)
def test_what_is_refused_is_refused_when_it_is_set_later(llm, question, wrong, kind):
    params = SamplingParams(temperature=0, max_tokens=8)
    with pytest.raises(kind if "temprature" not in wrong else AttributeError):
        for name, value in wrong.items():
            setattr(params, name, value)
        llm.generate(question, params)


def test_every_way_to_sample_refuses_what_was_set_later(llm, question):
    params, beams = SamplingParams(max_tokens=4), offshoot.BeamSearchParams(beam_width=2, max_tokens=2)
    params.stop.append("")
    tree = llm.tree(question)
    for sample in (
        lambda: llm.generate([question, question], [SamplingParams(max_tokens=1), params]),
        lambda: llm.generate_table(question, params), lambda: llm.stream(question, params),
        lambda: llm.astream(question, params), lambda: asyncio.run(llm.agenerate(question, params)),
        lambda: tree.extend([tree.root], params), lambda: tree.root.extend(params),
        lambda: offshoot.sample(llm, question, 2, sampling_params=params),
    ):
        with pytest.raises(ValueError, match="stop: expected texts that are not empty"):
            sample()
    for name, wrong, kind in (
        ("beam_width", 0, ValueError), ("beam_width", 5000, ValueError), ("max_tokens", 1.5, TypeError),
        ("temperature", -1, ValueError), ("length_penalty", math.inf, ValueError),
        ("length_penalty", 1e301, ValueError), ("length_penalty", math.nan, ValueError),
        ("ignore_eos", "no", TypeError),
        ("structured_outputs", {"regex": "a"}, NotImplementedError), ("allowed_token_ids", [5], NotImplementedError),
    ):
        with pytest.raises(kind, match=name):
            offshoot.BeamSearchParams(**{"beam_width": 2, "max_tokens": 2, name: wrong})
        later = beams.checked()
        setattr(later, name, wrong)
        with pytest.raises(kind, match=name):
            llm.beam_search(question, later)
    with pytest.raises(AttributeError):
        beams.beam_widht = 3
    assert llm.beam_search(question, beams)


def test_what_is_set_while_samples_run_does_not_reach_them(llm, question):
    params = SamplingParams(n=2, max_tokens=30, seed=1)
    whole = texts(llm.generate(question, params))[0]
    stream = llm.stream(question, params)
    params.n, params.detokenize, params.max_tokens = 0, False, "many"
    assert [each.output.text for each in sorted(
        (item for item in stream if item.output), key=lambda item: item.index)] == whole


def test_fields_of_vllm_that_mean_nothing_are_said_once(llm, question):
    with pytest.warns(UserWarning, match="skip_clone, spaces_between_special_tokens, stream_interval") as said:
        params = SamplingParams(max_tokens=2, stream_interval=4, skip_clone=True, spaces_between_special_tokens=False,
                                output_kind=RequestOutputKind.DELTA, structured_outputs=None, extra_args={})
        llm.generate(question, params)
    assert len(said) == 1
    assert SamplingParams(output_kind=2).output_kind is RequestOutputKind.FINAL_ONLY


def test_parameters_of_older_scripts_and_fields_that_are_set_later(llm, question):
    old = SamplingParams(use_beam_search=False, length_penalty=1.0, early_stopping=False, seed=-1, logprobs=True,
                         max_tokens=60)
    assert old.seed is None and old.logprobs == 1
    assert SamplingParams(stop_token_ids=numpy.array([5, 6])).stop_token_ids == [5, 6]
    old.stop, old.stop_token_ids, old.temperature = "=", numpy.array([1]), 0
    (request,) = llm.generate(question, old)
    assert request.outputs[0].stop_reason == "="
    assert pickle.loads(pickle.dumps(old)) == old.clone() == old
    for kept, length in ((3, 3), (-1, len(llm.encode(question)))):
        params = SamplingParams(truncate_prompt_tokens=kept, max_tokens=1)
        assert len(llm.generate(question, params)[0].prompt_token_ids) == length
    for most, room in ((60, 60), (None, 1)):
        params = SamplingParams(truncate_prompt_tokens=-1, max_tokens=most, ignore_eos=True)
        (request,) = llm.generate("long " * 2 * llm.max_model_len, params)
        assert len(request.prompt_token_ids) == llm.max_model_len - room
        assert len(request.outputs[0].token_ids) == room


def test_numbers_of_numpy_are_numbers(llm, question):
    params = SamplingParams(n=numpy.int64(2), temperature=numpy.float32(0.5), max_tokens=numpy.int32(3),
                            seed=numpy.uint8(4))
    assert len(llm.generate(question, params)[0].outputs) == 2


@pytest.mark.parametrize("prompts, kind", [
    (None, TypeError), ([None], TypeError), ([3.5], TypeError), ({"text": "a"}, TypeError), ([[]], TypeError),
    ([[-1]], ValueError), ([[1 << 31]], ValueError), ("\ud800", UnicodeEncodeError),
    ([{"multi_modal_data": {}, "prompt": "a"}], NotImplementedError),
    ("long " * 100_000, ValueError), ({"prompt": None}, TypeError), ({"prompt": 3}, TypeError),
    (5, TypeError), (b"abc", TypeError), ([[1, 2.5]], TypeError), ([[1 << 40]], ValueError),
    ({"prompt": 3, "prompt_token_ids": [5]}, TypeError),
])
def test_wrong_prompts(llm, prompts, kind):
    with pytest.raises(kind):
        llm.generate(prompts, SamplingParams(max_tokens=2))


def test_choices_are_a_list_of_texts_or_of_tokens(llm, question):
    for wrong in (" yes", 5, None):
        with pytest.raises(TypeError, match="choices: expected a list"):
            llm.score(question, wrong)
    with pytest.raises(TypeError, match="prompts"):
        llm.score(None, [" yes"])
    (by_text,) = llm.score({"prompt": question}, [" Then"]).choices
    (by_ids,) = llm.score(question, [llm.encode(" Then", add_special_tokens=False)]).choices
    assert by_text.token_ids == by_ids.token_ids and by_text.logprob == pytest.approx(by_ids.logprob, abs=1e-5)


def test_a_stream_says_at_once_what_is_wrong(llm):
    for stream in (llm.stream, llm.astream):
        with pytest.raises(TypeError, match="prompts: expected"):
            stream(5)


def test_nothing_gives_nothing(llm):
    assert llm.generate([], SamplingParams()) == []


def test_several_devices_sample_as_one(llm):
    params = SamplingParams(n=5, temperature=1.0, max_tokens=12, seed=3)
    prompts = [f"Question: Mia has {n} pens.\nAnswer:" for n in range(6)]
    texts = lambda outputs: [[sample.text for sample in output.outputs] for output in outputs]
    several = LLM(offshoot.demo_model(), devices=["cpu", "cpu", "cpu"])
    assert several.facts["replicas"] == 3
    assert texts(several.generate(prompts, params)) == texts(llm.generate(prompts, params))
    assert LLM(offshoot.demo_model(), device="cpu", data_parallel_size=2).facts["replicas"] == 2
    with pytest.raises(ValueError, match="each GPU once"):
        LLM(offshoot.demo_model(), devices="cuda:0,cuda:0")
    with pytest.raises(ValueError, match="devices"):
        LLM(offshoot.demo_model(), device="cpu", devices="cpu,cpu")


def test_a_model_is_divided_among_devices():
    params = SamplingParams(n=2, temperature=1.0, max_tokens=6, seed=3)
    texts = []
    for ranks in (1, 2):
        with LLM(offshoot.demo_model(), device="cpu", tensor_parallel_size=ranks, deterministic=True) as llm:
            (found,) = llm.generate(["A word of"], params)
            texts.append([out.text for out in found.outputs])
    assert texts[0] == texts[1]


def test_models_that_cannot_be_loaded(tmp_path):
    with pytest.raises(FileNotFoundError):
        LLM(tmp_path / "absent")
    with pytest.raises(TypeError):
        LLM(None)
    with pytest.raises(NotImplementedError, match="pipeline_parallel_size"):
        LLM(offshoot.demo_model(), pipeline_parallel_size=2)
    with pytest.raises(NotImplementedError, match="data_parallel_size"):
        LLM(offshoot.demo_model(), device="cpu", tensor_parallel_size=2, data_parallel_size=2)
    with pytest.raises(ValueError, match="3 devices|heads|divide"):
        LLM(offshoot.demo_model(), device="cpu", tensor_parallel_size=3)
    with pytest.raises(NotImplementedError, match="dtype"):
        LLM(offshoot.demo_model(), dtype="float64")
    with pytest.raises(TypeError, match="gpu_memory_utilisation"):
        LLM(offshoot.demo_model(), gpu_memory_utilisation=0.5)
    with pytest.raises(MemoryError):
        LLM(offshoot.demo_model(), device="cpu", kv_memory=1 << 30)
    with pytest.raises(MemoryError, match=r"\(swap_memory\)"):
        LLM(offshoot.demo_model(), device="cpu", swap_memory=1 << 40)
    with pytest.raises(ValueError, match="device"):
        LLM(offshoot.demo_model(), device="gpu")
    for name, wrong, kind in (
        ("kv_memory", -1, ValueError), ("kv_memory", 0, ValueError), ("kv_memory", "a", TypeError),
        ("memory", 2.0, ValueError),
        ("gpu_memory_utilization", 0, ValueError), ("swap_memory", "a", TypeError), ("swap_memory", -1, ValueError),
        ("max_model_len", -5, ValueError), ("max_model_len", "a", TypeError), ("max_num_seqs", 0, ValueError),
        ("threads", 0, ValueError), ("seed", "a", TypeError), ("plan", "x", ValueError), ("kv_dtype", "x", ValueError),
        ("kv_cache_dtype", "fp8_e5m2", ValueError), ("hf_overrides", {"a": 1}, NotImplementedError),
        ("rope_scaling", {"a": 1}, NotImplementedError), ("logits_processors", [1], NotImplementedError),
        ("task", "reward", NotImplementedError), ("convert", "classify", NotImplementedError),
        ("logprobs_mode", "raw_logits", NotImplementedError), ("load_format", "dummy", NotImplementedError),
        ("device_ids", [0], NotImplementedError), ("model_weights", "other", NotImplementedError),
        ("quantization_config", {"a": 1}, NotImplementedError), ("pooler_config", object(), NotImplementedError),
        ("return_sampling_mask", "yes", TypeError), ("chat_template", "absent.jinja", FileNotFoundError),
    ):
        with pytest.raises(kind, match=f"^{name}\\b" if kind is not FileNotFoundError else wrong):
            LLM(offshoot.demo_model(), device="cpu", **{name: wrong})


def test_what_has_no_meaning_is_said_once():
    with pytest.warns(UserWarning, match="enforce_eager, trust_remote_code") as said:
        LLM(offshoot.demo_model(), device="cpu", kv_memory=64, trust_remote_code=True, enforce_eager=True).close()
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LLM(offshoot.demo_model(), device="cpu", kv_memory=64, dtype="auto", gpu_memory_utilization=0.9).close()


def test_all_names_of_vllm_are_taken():
    ignored = dict.fromkeys(_vllm.WITHOUT_MEANING, 1) | {"load_format": "safetensors", "swap_space": 1e9}
    nothing = {name: empty for name, empty in zip(sorted(_vllm.WOULD_CHANGE), itertools.cycle([None, False, [], {}]))}
    usual = {"task": "generate", "runner": "auto", "convert": "none", "logprobs_mode": "raw_logprobs"}
    with pytest.warns(UserWarning) as said:
        LLM(offshoot.demo_model(), device="cpu", kv_memory=64, **ignored, **nothing, **usual).close()
    (said,) = said
    assert str(said.message).endswith(", ".join(sorted(ignored))) and len(ignored) > 200
    for names in (
        "model_impl max_cudagraph_capture_size reasoning_parser language_model_only optimization_level", "swap_space",
        "mm_processor_cache_gb worker_extension_cls mamba_ssm_cache_dtype calculate_kv_scales attention_config",
        "structured_outputs_config weight_transfer_config stream_interval data_parallel_backend",
    ):
        assert set(names.split()) <= _vllm.WITHOUT_MEANING


def test_log_probabilities_are_those_of_the_mode(llm, question):
    def shown(params, engine=llm):
        (request,) = engine.generate(question, params, use_tqdm=False)
        return [[row[token].logprob for token, row in zip(output.token_ids, output.logprobs)]
                for output in request.outputs], request.outputs

    cold = SamplingParams(n=2, max_tokens=20, seed=3, temperature=0.6, top_k=20, logprobs=3)
    (raw, _), (drawn, outputs) = shown(cold), shown(dataclasses.replace(cold, logprobs_mode="processed_logprobs"))
    assert [len(row) for row in raw] == [len(row) for row in drawn] and raw != drawn
    for row, output in zip(drawn, outputs):
        assert output.cumulative_logprob == pytest.approx(sum(row))
        for token, entries in zip(output.token_ids, output.logprobs):
            # Temperature 0.6 of 20 tokens: those listed are ordered, and likelier than by the model's own.
            assert next(iter(entries)) == token and sum(math.exp(entry.logprob) for entry in entries.values()) <= 1.001
    # At temperature 1 without cuts both are the same distribution; at 0 it is that of temperature 1.
    for plain in (SamplingParams(max_tokens=9, seed=3, logprobs=1),
                  SamplingParams(max_tokens=9, temperature=0, logprobs=1)):
        (one, _), (other, _) = shown(plain), shown(dataclasses.replace(plain, logprobs_mode="processed_logprobs"))
        assert one[0] == pytest.approx(other[0], abs=1e-5)
    with LLM(offshoot.demo_model(), device="cpu", kv_memory=64, logprobs_mode="processed_logprobs",
             return_sampling_mask=True) as processed:
        found, outputs = shown(cold, processed)
        assert found == drawn and shown(dataclasses.replace(cold, logprobs_mode="raw_logprobs"), processed)[0] == raw
        for output in outputs:
            assert [len(ids) for ids in output.sampling_mask.token_ids] == [20] * len(output.token_ids)
        streamed = [[], []]
        for part in processed.stream(question, cold):
            streamed[part.index] += part.logprobs
        assert streamed == drawn
        table = processed.generate_table(question, cold, use_tqdm=False)
        assert table["logprobs"].to_pylist() == drawn and table["kept_counts"].to_pylist()[0][:2] == [20, 20]
        assert table["kept_ids"].to_pylist() == [output.kept.ids for output in outputs]
    for mode in ("raw_logits", "processed_logits", 7):
        with pytest.raises((ValueError, TypeError), match="logprobs_mode"):
            SamplingParams(logprobs_mode=mode)


def test_kept_sets_and_entropies(llm, question):
    params = SamplingParams(n=2, max_tokens=16, seed=5, temperature=1.2, top_p=0.9, return_entropy=True)
    outputs = {}
    for form in (None, "count", "ids", "mask"):
        params.return_kept = form
        (request,) = llm.generate(question, params, use_tqdm=False)
        outputs[form] = request.outputs
    for plain, count, ids, mask in zip(*outputs.values()):
        tokens = len(plain.token_ids)
        assert plain.kept is None and plain.sampling_mask is None and plain.logprobs is None
        assert [len(plain.entropies), len(count.kept.counts), len(count.kept.lowest)] == [tokens] * 3
        assert all(0 <= entropy < math.log(llm.facts["vocab"]) for entropy in plain.entropies)
        assert (count.kept.ids, count.kept.masks, ids.kept.masks, mask.kept.ids) == (None,) * 4
        assert ids.kept.counts == count.kept.counts == mask.kept.counts
        for token, size, listed, bits in zip(plain.token_ids, count.kept.counts, ids.kept.ids, mask.kept.masks):
            if size > 1024:
                assert listed is None and bits is None
                continue
            assert len(listed) == size and token in listed and listed == sorted(listed)
            assert [id for id in range(8 * len(bits)) if bits[id // 8] >> id % 8 & 1] == listed
        assert ids.sampling_mask is None or ids.sampling_mask.token_ids == ids.kept.ids
    with pytest.raises(ValueError, match="return_kept: expected count, ids or mask"):
        SamplingParams(return_kept="all")
    with pytest.raises(TypeError, match="return_entropy"):
        SamplingParams(return_entropy="yes")


def test_samples_end_where_the_model_loses_confidence(llm, question):
    params = dict(n=4, max_tokens=40, seed=5, temperature=1.2)
    (whole,) = llm.generate(question, SamplingParams(**params, return_confidence=5), use_tqdm=False)
    for output in whole.outputs:
        assert len(output.confidences) == len(output.token_ids) and all(each > 0 for each in output.confidences)

    def means(confidences):
        return [sum(confidences[at:at + 4]) / 4 for at in range(len(confidences) - 3)]

    lowest = [min(means(output.confidences)) for output in whole.outputs]
    below = sorted(lowest)[-1]  # Only the best sample is whole.
    stop = {"window": 4, "below": below, "top": 5}
    deepconf = {"conf_group_size": 4, "conf_threshold": below, "conf_topk": 5, "eos_token_id": 0}
    for fields in (dict(confidence_stop=stop), dict(extra_args=deepconf)):
        (request,) = llm.generate(question, SamplingParams(**params, **fields), use_tqdm=False)
        for one, output, low in zip(whole.outputs, request.outputs, lowest):
            assert output.confidences is None
            if low >= below - 1e-6:
                assert output.token_ids == one.token_ids and output.finish_reason != "low_confidence"
                continue
            end = next(at for at, mean in enumerate(means(one.confidences)) if mean < below) + 4
            assert output.token_ids == one.token_ids[:end]
            assert output.finish_reason == "low_confidence" or end == len(one.token_ids)
    for wrong, named in (
        (dict(return_confidence=0), "return_confidence"), (dict(confidence_stop={"window": 4}), "confidence_stop"),
        (dict(confidence_stop={"window": 0, "below": 1.0}), "confidence_stop.window"),
        (dict(confidence_stop=stop, return_confidence=6), "return_confidence"),
        (dict(confidence_stop=stop, extra_args=deepconf), "extra_args"),
        (dict(confidence_stop={"window": 4, "below": float("nan")}), "confidence_stop.below"),
    ):
        with pytest.raises(ValueError, match=named):
            SamplingParams(**wrong)
    with pytest.raises(NotImplementedError, match="extra_args"):
        SamplingParams(extra_args={"other": 1})


def test_records_are_found_again_bit_for_bit(llm, question):
    everything = dict(logprobs=3, return_kept="ids", return_entropy=True, n=3, seed=9)
    for number, fields in enumerate((
        dict(temperature=0.6, top_p=0.95, logprobs_mode="processed_logprobs"), dict(temperature=1, top_k=20),
        dict(temperature=1.3, min_p=0.1, logprobs_mode="processed_logprobs"), dict(temperature=0),
        dict(repetition_penalty=1.3, presence_penalty=0.5, logit_bias={20: 2.0}, logprobs_mode="processed_logprobs"),
        dict(bad_words=["pens"], min_tokens=20, allowed_token_ids=list(range(400)), temperature=2.0),
    )):
        params = SamplingParams(max_tokens=30, **everything, **fields)
        drawn = llm.generate([question, question + " Mia"], params, use_tqdm=False)
        assert llm.rescore(drawn, params) == drawn, number
    other = dataclasses.replace(params, allowed_token_ids=[5, 6], logprobs_mode="processed_logprobs", bad_words=None,
                                min_tokens=0)
    (scored,) = llm.rescore(drawn[0], other)
    values = [row[token].logprob for output in scored.outputs for token, row in zip(output.token_ids, output.logprobs)]
    assert -math.inf in values and all(output.kept.counts[0] == 2 for output in scored.outputs)
    with pytest.raises(ValueError, match="sampling_params: expected 2"):
        llm.rescore(drawn, [params])
    with pytest.raises(TypeError, match="rescore"):
        llm.rescore([question], params)


def test_the_ending_token_is_recorded(llm, question):
    eos = llm.get_tokenizer().eos_token_id
    ended = SamplingParams(max_tokens=80, min_tokens=6, seed=2, temperature=0, logit_bias={eos: 100.0}, logprobs=1,
                           return_kept="ids", return_entropy=True)
    (request,) = llm.generate(question, ended, use_tqdm=False)
    (output,) = request.outputs
    assert output.finish_reason == "stop" and output.stop_reason is None
    assert len(output.token_ids) == 7 and output.token_ids[-1] == eos
    assert len(output.token_ids) == len(output.logprobs) == len(output.kept.counts) == len(output.entropies)
    assert next(iter(output.logprobs[-1])) == output.token_ids[-1]


def test_the_engine_behind_it_as_scripts_read_it(llm, question, tmp_path):
    engine = llm.llm_engine
    config = engine.model_config
    assert (config.max_model_len, config.model, config.seed) == (llm.max_model_len, llm.model, 0)
    assert config.get_vocab_size() == llm.facts["vocab"]
    assert SamplingParams(**config.get_diff_sampling_param()) == llm.get_default_sampling_params()
    assert engine.vllm_config.model_config == engine.get_model_config() == llm.model_config == config
    assert engine.tokenizer is engine.get_tokenizer() is llm.get_tokenizer()
    (tmp_path / "own.jinja").write_text("{{ messages[0].content }}!")
    with LLM(offshoot.demo_model(), device="cpu", kv_memory=64, chat_template=tmp_path / "own.jinja") as own:
        assert own.chat([{"role": "user", "content": "a"}], SamplingParams(max_tokens=1))[0].prompt == "a!"


def test_cached_prompts_can_be_given_up(question):
    with LLM(offshoot.demo_model(), device="cpu", kv_memory=64) as llm:
        def computed():
            before = llm.metrics()["prompt_tokens_computed"]
            llm.generate(question, SamplingParams(max_tokens=1))
            return llm.metrics()["prompt_tokens_computed"] - before

        tokens = len(llm.encode(question))
        assert computed() == tokens and computed() < tokens
        assert llm.reset_prefix_cache() is True and llm.metrics()["pages"]["cached"] == 0
        assert computed() == tokens
        assert llm.llm_engine.reset_prefix_cache()
        with pytest.raises(NotImplementedError, match="reset_running_requests"):
            llm.reset_prefix_cache(reset_running_requests=True)
        tree = llm.tree(question, seed=1)
        tree.extend([tree.root], SamplingParams(max_tokens=1))
        assert llm.reset_prefix_cache() is False, "a tree holds its own"


def test_priorities_and_how_texts_become_tokens(llm, question):
    params = SamplingParams(max_tokens=3, temperature=0)
    plain = texts(llm.generate([question, "a b"], params))
    for priority in (None, 0, 3, [0, 5], numpy.array([-1, 2])):
        assert texts(llm.generate([question, "a b"], params, priority=priority)) == plain
    assert llm.chat([{"role": "user", "content": "a"}], params, chat_template="{{ messages[0].content }}", priority=[1])
    for wrong, kind in (([0], ValueError), ([0, 1.5], TypeError), ("high", TypeError), (1 << 40, ValueError)):
        with pytest.raises(kind, match="priority"):
            llm.generate([question, "a b"], params, priority=wrong)
    ids = llm.encode(question)
    for given, expected in (
        (None, ids), ({}, ids), ({"truncation": True}, ids), ({"truncation": True, "max_length": 3}, ids[:3]),
        ({"add_special_tokens": False}, llm.encode(question, add_special_tokens=False)),
    ):
        assert llm.generate(question, params, tokenization_kwargs=given)[0].prompt_token_ids == expected
    with pytest.raises(NotImplementedError, match="tokenization_kwargs: padding"):
        llm.generate(question, params, tokenization_kwargs={"padding": True})
    adapter = LoRARequest("a", 1, "folder")
    assert texts(llm.generate([question, "a b"], params, lora_request=[None, None])) == plain
    for call in (lambda: llm.generate(question, params, lora_request=adapter),
                 lambda: llm.beam_search(question, offshoot.BeamSearchParams(beam_width=1, max_tokens=1), adapter)):
        with pytest.raises(ValueError, match="lora_request: expected an LLM made with enable_lora=True"):
            call()


def test_flat_log_probabilities_read_like_lists(llm, question):
    params = SamplingParams(n=2, max_tokens=6, seed=1, logprobs=2, prompt_logprobs=1)
    (listed,) = llm.generate(question, params)
    params.flat_logprobs = True
    (flat,) = llm.generate(question, params)
    assert isinstance(flat.prompt_logprobs, FlatLogprobs)
    assert list(flat.prompt_logprobs) == [{}, *listed.prompt_logprobs[1:]]
    for short, output in zip(flat.outputs, listed.outputs):
        rows = short.logprobs
        assert isinstance(rows, FlatLogprobs) and list(rows) == output.logprobs and len(rows) == len(output.token_ids)
        assert rows[-1] == output.logprobs[-1] and list(rows[1:3]) == output.logprobs[1:3]
        first = range(rows.start_indices[1], rows.end_indices[1])
        assert [rows.token_ids[at] for at in first] == list(output.logprobs[1])
        with pytest.raises(IndexError):
            rows[len(rows)]


def test_a_tokenizer_has_the_names_of_transformers(llm, tmp_path):
    tokenizer = offshoot.Tokenizer.of_folder(llm.model)
    assert tokenizer.name_or_path == llm.model and tokenizer.is_fast and tokenizer.padding_side == "right"
    assert set(tokenizer.all_special_ids) == {llm.facts["bos"], *llm.facts["eos"]}
    named = tokenizer.special_tokens_map
    assert named["eos_token"] == tokenizer.eos_token and set(named.values()) == set(tokenizer.all_special_tokens)
    assert tokenizer.convert_tokens_to_string(tokenizer.tokenize("a b")) == "a b"
    tokenizer.pad_token = "x"
    assert tokenizer.convert_tokens_to_ids("x") in tokenizer.all_special_ids
    for name in ("tokenizer.json", "special_tokens_map.json"):
        (tmp_path / name).write_bytes((pathlib.Path(llm.model) / name).read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"additional_special_tokens": ["x", {"content": "y"}]}))
    more = offshoot.Tokenizer.of_folder(tmp_path)
    assert more.special_tokens_map["additional_special_tokens"] == ["x", "y"]
    assert more.all_special_ids == [*llm.get_tokenizer().all_special_ids, *more.convert_tokens_to_ids(["x", "y"])]


def test_a_script_of_vllm_finds_its_modules(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", offshoot)
    try:
        from vllm import LLM as Model
        from vllm.distributed.parallel_state import destroy_distributed_environment, destroy_model_parallel
        from vllm.logprobs import FlatLogprobs as Flat
        from vllm.lora.request import LoRARequest as Adapter
        from vllm.sampling_params import GuidedDecodingParams
        from vllm.sampling_params import RequestOutputKind as Kind
        from vllm.utils import random_uuid
    finally:
        for name in [name for name in sys.modules if name.startswith("vllm.")]:
            del sys.modules[name]
    assert (Model, Adapter, Flat) == (LLM, LoRARequest, FlatLogprobs), "not a second one"
    assert Kind == RequestOutputKind and issubclass(GuidedDecodingParams, StructuredOutputsParams)
    assert len({random_uuid() for _ in range(100)}) == 100
    assert destroy_model_parallel() is None and destroy_distributed_environment() is None
    adapter = Adapter(lora_name="a", lora_int_id=1, lora_path="b")
    assert (adapter.name, adapter.adapter_id, adapter.path) == ("a", 1, "b")


def test_an_interruption_can_be_pickled(llm, question):
    stopped = offshoot.Interrupted(llm.generate(question, SamplingParams(max_tokens=1)))
    assert pickle.loads(pickle.dumps(stopped)).outputs == stopped.outputs


def test_a_closed_llm_says_so(question):
    llm = LLM(offshoot.demo_model(), device="cpu", kv_memory=64)
    llm.close()
    with pytest.raises(RuntimeError, match="closed"):
        llm.generate(question)


def test_beam_search_finds_the_likeliest_sequences(llm, question):
    """Against all pairs of the likeliest tokens after the prompt."""
    ids = llm.encode(question)
    first = llm.generate(
        {"prompt_token_ids": ids}, SamplingParams(max_tokens=1, temperature=0, logprobs=8))[0].outputs[0].logprobs[0]
    pairs = {}
    for token, found in first.items():
        (request,) = llm.generate(
            {"prompt_token_ids": [*ids, token]}, SamplingParams(max_tokens=1, temperature=0, logprobs=8))
        pairs |= {
            (token, other): found.logprob + more.logprob for other, more in request.outputs[0].logprobs[0].items()}
    expected = sorted(pairs, key=pairs.get, reverse=True)[:4]
    params = offshoot.BeamSearchParams(beam_width=4, max_tokens=2, ignore_eos=True)
    (output,) = llm.beam_search([{"prompt": question}], params)
    assert [tuple(beam.tokens[len(ids):]) for beam in output.sequences] == expected
    assert [beam.cum_logprob for beam in output.sequences] == pytest.approx(
        [pairs[pair] for pair in expected], abs=1e-4)
    assert all(beam.tokens[:len(ids)] == ids and question in beam.text for beam in output.sequences)
    ended = llm.beam_search([question, "Question: a"], offshoot.BeamSearchParams(beam_width=2, max_tokens=40))
    assert len(ended) == 2 and all(len(each.sequences) == 2 for each in ended)
    assert any(beam.finish_reason == "stop" and beam.tokens[-1] in llm.facts["eos"]
               for each in ended for beam in each.sequences)
    assert llm.beam_search([], params) == []
    # A power of 1e3 is no float: with it more tokens are always better, against it fewer.
    for penalty, order in ((1e3, 1), (1e300, 1), (-1e3, -1)):
        (ranked,) = llm.beam_search(
            ["Question: a"], offshoot.BeamSearchParams(beam_width=4, max_tokens=40, length_penalty=penalty))
        lengths = [order * (len(beam.tokens) - (beam.tokens[-1] in llm.facts["eos"])) for beam in ranked.sequences]
        assert lengths == sorted(lengths, reverse=True), penalty
    ended_alone = llm.beam_search(
        [question, "Question: a"], offshoot.BeamSearchParams(beam_width=2, max_tokens=40), concurrency_limit=1)
    assert [[beam.tokens for beam in each.sequences] for each in ended_alone] == [
        [beam.tokens for beam in each.sequences] for each in ended]
    with pytest.raises(TypeError, match="params: expected BeamSearchParams"):
        llm.beam_search(question, SamplingParams())


def test_modules_are_where_vllm_has_them(llm):
    from offshoot.inputs import TextPrompt, TokensPrompt
    from offshoot.outputs import CompletionOutput, RequestOutput
    from offshoot.sampling_params import BeamSearchParams
    from offshoot.sampling_params import SamplingParams as Params

    assert BeamSearchParams is offshoot.BeamSearchParams
    by_text, by_ids = llm.generate([TextPrompt(prompt="a b"), TokensPrompt(prompt_token_ids=llm.encode("a b"))],
                                   Params(max_tokens=3, seed=1))
    assert isinstance(by_text, RequestOutput) and isinstance(by_text.outputs[0], CompletionOutput)
    assert by_text.outputs == by_ids.outputs
