"""openai-python's typed answers, tools and responses: `.parse`, streams of both, and what comes back in histories.

The bundled model's answers make no sense; what is asserted is that they have their types.
"""

import enum
import json
import sys
from typing import Literal

import checks

checks.skip_without("openai", "pydantic")
import openai  # noqa: E402
from pydantic import BaseModel, Field  # noqa: E402

CHAT = [{"role": "user", "content": "How many are 3 and 4?"}]


class Unit(str, enum.Enum):
    PIECES = "pieces"
    KILOGRAMS = "kg"


class Closed(BaseModel):
    """An object without other fields: with them the model might not find an end."""

    model_config = {"extra": "forbid"}


class Item(Closed):
    name: str = Field(max_length=6)
    unit: Unit


class Count(Closed):
    """A count of things."""

    kind: Literal["count"]
    number: int = Field(ge=0, le=99)
    sure: bool
    items: list[Item] = Field(max_length=2)
    parent: "Count | None" = None


class Weather(Closed):
    """The weather at a place."""

    city: Literal["Paris", "Zürich"]
    days: int = Field(ge=1, le=7)


class Clock(Closed):
    """The time of a zone."""

    zone: Literal["UTC", "CET"]


def chat(client, **fields):
    return client.chat.completions.create(
        **{"model": MODEL, "messages": CHAT, "max_tokens": 600, "temperature": 0.3, "seed": 7, **fields}
    )


def parse(client, **fields):
    return client.chat.completions.parse(
        **{"model": MODEL, "messages": CHAT, "max_tokens": 600, "temperature": 0.3, "seed": 7, **fields}
    )


def tools(*models):
    return [openai.pydantic_function_tool(model) for model in models]


def calls_are_typed(calls):
    for call in calls:
        assert call.type == "function" and call.id, call
        kind = {"Weather": Weather, "Clock": Clock}[call.function.name]
        assert isinstance(call.function.parsed_arguments, kind), call


def check_parse(client):
    answer = parse(client, response_format=Count, n=4, temperature=1)
    for choice in answer.choices:
        assert choice.finish_reason == "stop", choice
        assert isinstance(choice.message.parsed, Count), choice
        assert not choice.message.tool_calls


def check_parse_of_a_chosen_kind(client):
    class Answer(Closed):
        value: Weather | Clock

    parsed = parse(client, response_format=Answer).choices[0].message.parsed
    assert isinstance(parsed.value, (Weather, Clock))


def check_a_cut_answer_raises(client):
    try:
        parse(client, response_format=Count, max_tokens=3)
    except openai.LengthFinishReasonError:
        return
    raise AssertionError("a cut answer was parsed")


def check_a_dead_end_raises(client):
    # Its object ends behind the brace, where the form allows no token that the request does.
    body = {"prompt": "{", "add_special_tokens": False}
    tokens = client.post(str(client.base_url.join("/tokenize")), cast_to=object, body=body)["tokens"]
    fields = {"response_format": Count, "extra_body": {"allowed_token_ids": tokens}}
    try:
        parse(client, **fields)
    except openai.LengthFinishReasonError as error:
        [choice] = error.completion.choices
        assert (choice.finish_reason, choice.stop_reason) == ("length", "dead_end"), choice
        return
    raise AssertionError("half an object was parsed")


def check_json_object(client):
    answer = chat(client, response_format={"type": "json_object"}, max_tokens=400)
    [choice] = answer.choices
    # The model may not find an end by itself: then it is cut.
    assert choice.message.content.lstrip().startswith("{"), choice
    assert choice.finish_reason == "length" or isinstance(json.loads(choice.message.content), dict)


def check_a_stream_of_a_typed_answer(client):
    whole = parse(client, response_format=Count).choices[0].message
    with client.chat.completions.stream(
        model=MODEL, messages=CHAT, response_format=Count, max_tokens=300, temperature=0.3, seed=7
    ) as stream:
        kinds = [event.type for event in stream]
        parsed = stream.get_final_completion().choices[0].message.parsed
    assert "content.delta" in kinds and "content.done" in kinds, set(kinds)
    assert parsed == whole.parsed


def check_log_probabilities_of_a_typed_answer(client):
    [choice] = parse(client, response_format=Weather, logprobs=True).choices
    text = b"".join(bytes(token.bytes) for token in choice.logprobs.content).decode()
    assert text.startswith(choice.message.content), (text, choice.message.content)


def check_schemas_that_are_refused(client):
    bad = {"type": "json_schema", "json_schema": {"name": "bad", "schema": {"type": "integer", "minimum": 3,
                                                                           "maximum": 2}}}
    try:
        chat(client, response_format=bad)
    except openai.BadRequestError as error:
        assert "response_format" in (error.param or ""), error
        return
    raise AssertionError("a schema that nothing satisfies was accepted")


def check_required_tools(client):
    answer = parse(client, tools=tools(Weather, Clock), tool_choice="required", n=4, temperature=1)
    for choice in answer.choices:
        assert choice.finish_reason == "tool_calls", choice
        assert choice.message.tool_calls, choice
        calls_are_typed(choice.message.tool_calls)
    assert len({call.id for choice in answer.choices for call in choice.message.tool_calls}) >= 4


def check_a_named_tool(client):
    named = {"type": "function", "function": {"name": "Clock"}}
    [choice] = parse(client, tools=tools(Weather, Clock), tool_choice=named).choices
    calls_are_typed(choice.message.tool_calls)
    assert {call.function.name for call in choice.message.tool_calls} == {"Clock"}


def check_one_call_at_most(client):
    answer = parse(client, tools=tools(Weather, Clock), tool_choice="required", parallel_tool_calls=False, n=4,
                   temperature=1)
    assert all(len(choice.message.tool_calls) == 1 for choice in answer.choices)


def check_tools_that_need_not_be_called(client):
    for choice in ("auto", "none"):
        answer = chat(client, tools=tools(Weather, Clock), tool_choice=choice, max_tokens=12)
        [choice] = answer.choices
        assert choice.message.content is not None or choice.message.tool_calls, choice


def check_a_stream_of_calls(client):
    fields = {"tools": tools(Weather, Clock), "tool_choice": "required", "parallel_tool_calls": False}
    whole = chat(client, **fields).choices[0].message.tool_calls
    names, arguments, finish = {}, {}, None
    for chunk in chat(client, stream=True, **fields):
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                if call.function.name:
                    assert call.id and call.index not in names, call
                    names[call.index] = call.function.name
                arguments[call.index] = arguments.get(call.index, "") + (call.function.arguments or "")
    assert finish == "tool_calls", finish
    assert names == {n: call.function.name for n, call in enumerate(whole)}
    assert arguments == {n: call.function.arguments for n, call in enumerate(whole)}


def check_an_accumulated_stream_of_calls(client):
    with client.chat.completions.stream(model=MODEL, messages=CHAT, tools=tools(Weather), tool_choice="required",
                                        max_tokens=200, temperature=0.3, seed=7) as stream:
        kinds = {event.type for event in stream}
        calls = stream.get_final_completion().choices[0].message.tool_calls
    assert "tool_calls.function.arguments.done" in kinds, kinds
    calls_are_typed(calls)


def check_a_history_of_calls(client):
    answer = chat(client, tools=tools(Weather), tool_choice="required", parallel_tool_calls=False)
    message = answer.choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": json.dumps({"degrees": 7})}
               for call in message.tool_calls]
    again = chat(client, messages=[*CHAT, message, *results], tools=tools(Weather), max_tokens=12)
    assert again.usage.prompt_tokens > answer.usage.prompt_tokens


def check_a_typed_answer_beside_tools(client):
    class Answer(Closed):
        answer: int = Field(ge=0, le=9)

    message = parse(client, tools=tools(Weather), tool_choice="none", response_format=Answer).choices[0].message
    assert isinstance(message.parsed, Answer), message


def response(client, **fields):
    return client.responses.create(
        **{"model": MODEL, "input": "How many are 3 and 4?", "max_output_tokens": 12, "temperature": 0, **fields}
    )


def check_responses(client):
    answer = response(client, store=False)
    assert answer.object == "response" and answer.status in ("completed", "incomplete"), answer
    assert answer.output_text and answer.usage.output_tokens in range(1, 13)
    if answer.status == "incomplete":
        assert answer.incomplete_details.reason == "max_output_tokens"


def check_responses_parse(client):
    answer = client.responses.parse(model=MODEL, input="How many are 3 and 4?", text_format=Weather,
                                    max_output_tokens=600, temperature=0)
    assert isinstance(answer.output_parsed, Weather), answer


def check_responses_stream(client):
    kinds, text, numbers = [], "", []
    for event in response(client, stream=True):
        kinds.append(event.type)
        numbers.append(event.sequence_number)
        text += event.delta if event.type == "response.output_text.delta" else ""
    assert kinds[0] == "response.created" and kinds[-1] in ("response.completed", "response.incomplete"), kinds
    assert numbers == sorted(set(numbers)), numbers
    assert event.response.output_text == text


def check_responses_stream_of_a_typed_answer(client):
    with client.responses.stream(model=MODEL, input="How many?", text_format=Weather, max_output_tokens=600,
                                 temperature=0) as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_response()
    assert "response.output_text.delta" in kinds
    assert isinstance(answer.output_parsed, Weather), answer


def check_responses_call_functions(client):
    functions = [openai.pydantic_function_tool(Weather)["function"]]
    functions = [{"type": "function", **function} for function in functions]
    answer = response(client, tools=functions, tool_choice="required", max_output_tokens=600)
    calls = [item for item in answer.output if item.type == "function_call"]
    assert calls, answer
    for call in calls:
        Weather.model_validate_json(call.arguments)
    outputs = [{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"} for call in calls]
    items = [{"role": "user", "content": "How many are 3 and 4?"}, *answer.output, *outputs]
    again = response(client, tools=functions, input=items)
    assert again.status in ("completed", "incomplete")
    behind = response(client, tools=functions, input=outputs, previous_response_id=answer.id)
    assert behind.previous_response_id == answer.id


def check_responses_go_on(client):
    first = response(client)
    second = response(client, input="And 5?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.input_tokens
    assert client.responses.retrieve(first.id).output_text == first.output_text
    client.responses.delete(first.id)
    try:
        response(client, input="And 6?", previous_response_id=first.id)
    except openai.APIStatusError as error:
        assert error.status_code in (400, 404), error
        return
    raise AssertionError("a response that was deleted went on")


if __name__ == "__main__":
    given = checks.options()
    MODEL = given.model
    client = openai.OpenAI(base_url=given.base_url + "/v1", api_key="none", max_retries=0, timeout=120)
    checks.run(sys.modules[__name__], client)
