"""openai-python, as its users call it: completions, chats, choices, streams, log-probabilities, errors, files,
batches."""

import io
import json
import math
import sys
import time

import checks

checks.skip_without("openai")
import openai  # noqa: E402

QUESTION = "Question: Tom has 260 cards. Kim has 68 fewer cards than Tom. How many cards does Kim have?\nAnswer:"
# The model is nearly sure of its answer to a question, but not of the question.
OPEN = "Question:"
CHAT = [{"role": "system", "content": "You count."}, {"role": "user", "content": "How many are 3 and 4?"}]


def completion(client, **fields):
    return client.completions.create(**{"model": MODEL, "prompt": QUESTION, "max_tokens": 12, "seed": 7, **fields})


def chat(client, **fields):
    return client.chat.completions.create(
        **{"model": MODEL, "messages": CHAT, "max_tokens": 12, "seed": 7, **fields}
    )


def texts(answer):
    return [choice.text for choice in answer.choices]


def raises(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")


def check_models(client):
    names = [model.id for model in client.models.list()]
    assert MODEL in names, names
    assert client.models.retrieve(MODEL).id == MODEL
    raises(openai.NotFoundError, lambda: client.models.retrieve("none-of-that-name"))


def check_completion(client):
    answer = completion(client)
    assert answer.object == "text_completion" and answer.model == MODEL
    [choice] = answer.choices
    assert choice.text and choice.index == 0 and choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.completion_tokens in range(1, 13)
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def check_choices_are_prompt_by_prompt(client):
    prompts = [OPEN, QUESTION, QUESTION + " Kim"]
    answer = completion(client, prompt=prompts, n=4, extra_body={"ignore_eos": True})
    assert [choice.index for choice in answer.choices] == list(range(12))
    assert answer.usage.completion_tokens == 12 * 12, answer.usage
    assert len(set(texts(answer)[:4])) > 1, "the choices of one prompt are not independent"


def check_seeds(client):
    one = texts(completion(client, prompt=OPEN, n=3))
    assert one == texts(completion(client, prompt=OPEN, n=3))
    assert one == texts(completion(client, prompt=OPEN, n=5))[:3]
    assert one != texts(completion(client, prompt=OPEN, n=3, seed=8))


def check_greedy_choices_are_equal(client):
    assert len(set(texts(completion(client, n=4, temperature=0)))) == 1


def check_token_prompts(client):
    ids = client.post("/tokenize", body={"model": MODEL, "prompt": QUESTION}, cast_to=object)["tokens"]
    one = texts(completion(client, temperature=0))
    assert texts(completion(client, prompt=ids, temperature=0)) == one
    assert texts(completion(client, prompt=[ids, ids[:3]], temperature=0))[:1] == one


def check_streams_say_the_same(client):
    whole = completion(client, n=3)
    stream = completion(client, n=3, stream=True, stream_options={"include_usage": True})
    parts, ends, usages = ["", "", ""], [None] * 3, []
    for chunk in stream:
        for choice in chunk.choices:
            parts[choice.index] += choice.text
            ends[choice.index] = choice.finish_reason or ends[choice.index]
        usages += [chunk.usage] if chunk.usage else []
    assert parts == texts(whole)
    assert ends == [choice.finish_reason for choice in whole.choices]
    assert len(usages) == 1 and usages[0].completion_tokens == whole.usage.completion_tokens, usages


def check_streams_without_usage(client):
    assert all(chunk.usage is None for chunk in completion(client, stream=True))


def check_chat_streams(client):
    whole = chat(client, n=2)
    parts, roles = ["", ""], [None, None]
    for chunk in chat(client, n=2, stream=True):
        assert chunk.object == "chat.completion.chunk"
        for choice in chunk.choices:
            parts[choice.index] += choice.delta.content or ""
            roles[choice.index] = choice.delta.role or roles[choice.index]
    assert parts == [choice.message.content for choice in whole.choices]
    assert roles == ["assistant"] * 2
    assert whole.choices[0].message.role == "assistant"


def check_chat_parts(client):
    listed = [{"role": message["role"], "content": [{"type": "text", "text": message["content"]}]} for message in CHAT]
    content = [chat(client, messages=messages, temperature=0).choices[0].message.content for messages in (CHAT, listed)]
    assert content[0] == content[1]


def check_completion_logprobs(client):
    [choice] = completion(client, logprobs=3).choices
    shown = choice.logprobs
    assert "".join(shown.tokens) == choice.text
    for token, logprob, top in zip(shown.tokens, shown.token_logprobs, shown.top_logprobs):
        assert top[token] == logprob <= 0
        assert 3 <= len(top) <= 4
        assert sum(math.exp(one) for one in top.values()) <= 1 + 1e-4
    assert shown.text_offset == sorted(shown.text_offset)


def check_chat_logprobs(client):
    [choice] = chat(client, logprobs=True, top_logprobs=2).choices
    for token in choice.logprobs.content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 2
    text = b"".join(bytes(token.bytes) for token in choice.logprobs.content).decode()
    assert text == choice.message.content


def check_echo(client):
    [choice] = completion(client, echo=True, logprobs=1, max_tokens=1, temperature=0).choices
    assert choice.text.startswith(QUESTION)
    assert choice.logprobs.token_logprobs[0] is None
    assert all(logprob <= 0 for logprob in choice.logprobs.token_logprobs[1:])
    # What is scored is what is sampled: the same tokens as a prompt have the same log-probabilities.
    [sampled] = completion(client, logprobs=1, max_tokens=4, temperature=0).choices
    [scored] = completion(client, prompt=QUESTION + sampled.text, echo=True, logprobs=1, max_tokens=0).choices
    count = len(sampled.logprobs.tokens)
    if scored.logprobs.tokens[-count:] == sampled.logprobs.tokens:
        for own, again in zip(sampled.logprobs.token_logprobs, scored.logprobs.token_logprobs[-count:]):
            # Two bf16 passes of other shapes: a part in 2^8 of logits of about 10.
            assert abs(own - again) < 10 / 256, (own, again)


def response(client, **fields):
    fields = {"input": "How many are 3 and 4?", "max_output_tokens": 12, "temperature": 0, **fields}
    return client.responses.create(**{"model": MODEL, **fields})


def check_responses(client):
    include = ["message.output_text.logprobs"]
    whole = response(client, instructions="You count.", include=include, top_logprobs=2, metadata={"a": "b"})
    type(whole).model_validate(whole.model_dump())
    assert whole.status in ("completed", "incomplete") and whole.metadata == {"a": "b"}
    [item] = whole.output
    assert item.type == "message" and item.content[0].logprobs
    said = [choice.message.content for choice in chat(client, temperature=0, max_tokens=12).choices]
    assert [whole.output_text] == said, "the answer is that of the chat"
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    assert client.responses.retrieve(whole.id).output_text == whole.output_text
    counted = client.responses.input_tokens.count(model=MODEL, instructions="You count.", input="How many are 3 and 4?")
    assert counted.input_tokens == whole.usage.input_tokens
    # A raw stream, and the one that puts its events together.
    events = list(response(client, instructions="You count.", stream=True))
    kinds = [event.type for event in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"], kinds
    assert [event.sequence_number for event in events] == list(range(len(events)))
    for event in events:
        type(event).model_validate(event.model_dump())
    assert events[-1].response.output_text == whole.output_text
    with client.responses.stream(model=MODEL, input="How many are 3 and 4?", instructions="You count.",
                                 temperature=0) as stream:
        deltas = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        assert stream.get_final_response().output_text == deltas


def check_conversations(client):
    first = response(client)
    after = response(client, previous_response_id=first.id, input=[{"role": "user", "content": "And 5?"}])
    said = {"role": "assistant", "content": first.output_text}
    resent = [{"role": "user", "content": "How many are 3 and 4?"}, said, {"role": "user", "content": "And 5?"}]
    assert response(client, input=resent, store=False).output_text == after.output_text
    # What a response has said is sent back as it is.
    again = [{"role": "user", "content": "How many are 3 and 4?"}, *first.output, {"role": "user", "content": "And 5?"}]
    assert response(client, input=again).output_text == after.output_text
    items = client.responses.input_items.list(after.id, order="asc", limit=2)
    assert [item.content[0].text for item in items] == [resent[0]["content"], first.output_text, "And 5?"]
    client.responses.delete(first.id)
    gone = raises(openai.NotFoundError, lambda: response(client, previous_response_id=first.id))
    assert gone.code == "previous_response_not_found", gone
    assert raises(openai.BadRequestError, lambda: response(client, background=True)).param == "background"


def check_stop(client):
    whole = texts(completion(client, temperature=0, max_tokens=24))[0]
    stop = whole.strip()[3:6]
    answer = completion(client, temperature=0, max_tokens=24, stop=[stop, "never"])
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].text == whole[: whole.index(stop)]
    streamed = "".join(chunk.choices[0].text for chunk in
                       completion(client, temperature=0, max_tokens=24, stop=stop, stream=True) if chunk.choices)
    assert streamed == answer.choices[0].text, "a stream shows what a stop string cuts off"


def check_logit_bias(client):
    token = client.post("/tokenize", body={"model": MODEL, "prompt": " 7", "add_special_tokens": False},
                        cast_to=object)["tokens"][-1]
    [choice] = completion(client, temperature=0, max_tokens=3, logit_bias={str(token): 100}).choices
    assert choice.text.count("7") >= 3, choice.text


def check_many_choices(client):
    answer = completion(client, n=256, max_tokens=2, extra_body={"ignore_eos": True})
    assert len(answer.choices) == 256 and answer.usage.completion_tokens == 512


def check_errors(client):
    refused = raises(openai.BadRequestError, lambda: completion(client, temperature="hot"))
    assert refused.param == "temperature" and refused.status_code == 400, refused
    assert raises(openai.BadRequestError, lambda: completion(client, extra_body={"max_token": 1})).param == "max_token"
    tools = [{"type": "function", "function": {"name": "no name", "parameters": {"type": "object"}}}]
    assert raises(openai.BadRequestError, lambda: chat(client, tools=tools)).param == "tools"
    long = raises(openai.BadRequestError, lambda: completion(client, prompt="word " * 20_000))
    assert long.code == "context_length_exceeded", long.code
    missing = raises(openai.NotFoundError, lambda: completion(client, model="none-of-that-name"))
    assert missing.code == "model_not_found", missing.code
    raises(openai.NotFoundError, lambda: client.post("/nothing-there", body={}, cast_to=object))


def check_a_stream_that_is_closed(client):
    for _ in range(3):
        stream = completion(client, max_tokens=2000, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
    check_completion(client)


def check_files_and_batches(client):
    if not has_files(client):
        print("skipped: this server has no files")
        return
    bodies = [{"model": MODEL, "prompt": QUESTION, "max_tokens": 6, "seed": seed} for seed in range(4)]
    lines = [{"custom_id": f"r{n}", "method": "POST", "url": "/v1/completions", "body": body}
             for n, body in enumerate(bodies)]
    text = "\n".join(json.dumps(line) for line in lines).encode()
    file = client.files.create(file=("requests.jsonl", io.BytesIO(text)), purpose="batch")
    assert client.files.content(file.id).read() == text
    assert file.id in [one.id for one in client.files.list()]
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
    for _ in range(600):
        batch = client.batches.retrieve(batch.id)
        if batch.status in ("completed", "failed", "expired", "cancelled"):
            break
        time.sleep(0.1)
    assert batch.status == "completed", batch
    assert batch.request_counts.completed == 4 and batch.request_counts.failed == 0
    answers = [json.loads(line) for line in client.files.content(batch.output_file_id).read().splitlines()]
    by_id = {answer["custom_id"]: answer["response"]["body"] for answer in answers}
    assert sorted(by_id) == ["r0", "r1", "r2", "r3"]
    for n, body in enumerate(bodies):
        direct = client.completions.create(**body)
        assert by_id[f"r{n}"]["choices"][0]["text"] == direct.choices[0].text, "a batch samples what the server does"
    client.files.delete(file.id)
    raises(openai.NotFoundError, lambda: client.files.retrieve(file.id))


def has_files(client):
    try:
        client.files.list()
        return True
    except openai.NotFoundError:
        return False


if __name__ == "__main__":
    given = checks.options()
    MODEL = given.model
    client = openai.OpenAI(base_url=given.base_url + "/v1", api_key="none", max_retries=0, timeout=120)
    checks.run(sys.modules[__name__], client)
