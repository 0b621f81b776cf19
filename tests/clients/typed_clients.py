"""Libraries for typed answers, unchanged: langchain-openai, instructor, pydantic-ai, and its_hub's votes over calls.

The bundled model's answers make no sense; what is asserted is that they have their types.
"""

import asyncio
import sys
from typing import Literal

import checks

checks.skip_without("langchain_openai", "instructor", "pydantic_ai", "its_hub")
import httpx  # noqa: E402
import instructor  # noqa: E402
import openai  # noqa: E402
from instructor.core.exceptions import IncompleteOutputException  # noqa: E402
from its_hub import OpenAICompatibleLanguageModel, SelfConsistency  # noqa: E402
from langchain_core.messages import HumanMessage, ToolMessage  # noqa: E402
from langchain_core.tools import tool  # noqa: E402
from langchain_openai import ChatOpenAI  # noqa: E402
from pydantic import BaseModel, Field  # noqa: E402
from pydantic_ai import Agent, NativeOutput, ToolOutput  # noqa: E402
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel  # noqa: E402
from pydantic_ai.providers.openai import OpenAIProvider  # noqa: E402

QUESTION = "How many are 3 and 4?"
SETTINGS = {"temperature": 0.3, "max_tokens": 600, "seed": 7}


class Closed(BaseModel):
    """An object without other fields: with them the model might not find an end."""

    model_config = {"extra": "forbid"}


class Count(Closed):
    """A count of things."""

    number: int = Field(ge=0, le=99, description="how many")
    unit: Literal["pieces", "kg"]
    words: list[Literal["many", "few"]] = Field(max_length=2)


class Failure(Closed):
    """That nothing can be counted."""

    reason: Literal["empty", "unknown"]


class Place(Closed):
    city: Literal["Paris", "Zürich"]
    days: Literal[1, 2, 3]


@tool(args_schema=Place)
def weather(city, days) -> str:
    """The weather of a city."""
    return f"{city} is sunny for {days} days"


def langchain(server, **more):
    return ChatOpenAI(base_url=server + "/v1", api_key="none", model=MODEL, max_retries=0, **{**SETTINGS, **more})


def check_langchain_by_schema(server):
    model = langchain(server).with_structured_output(Count, method="json_schema")
    assert isinstance(model.invoke(QUESTION), Count)


def check_langchain_by_schema_strictly(server):
    model = langchain(server).with_structured_output(Count, method="json_schema", strict=True, include_raw=True)
    answer = model.invoke(QUESTION)
    assert isinstance(answer["parsed"], Count) and answer["parsing_error"] is None, answer


def check_langchain_by_a_schema_that_is_a_dict(server):
    model = langchain(server).with_structured_output(Count.model_json_schema(), method="json_schema")
    Count.model_validate(model.invoke(QUESTION))


def check_langchain_by_calls(server):
    model = langchain(server).with_structured_output(Count, method="function_calling")
    assert isinstance(model.invoke(QUESTION), Count)


def check_langchain_tools(server):
    model = langchain(server).bind_tools([weather], tool_choice="required", strict=True)
    answer = model.invoke(QUESTION)
    assert answer.tool_calls and not answer.invalid_tool_calls, answer
    results = [ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]) for call in answer.tool_calls]
    again = langchain(server, max_tokens=12).bind_tools([weather]).invoke([HumanMessage(QUESTION), answer, *results])
    assert again.usage_metadata["input_tokens"] > answer.usage_metadata["input_tokens"]


def check_langchain_named_tool(server):
    answer = langchain(server).bind_tools([weather, Failure], tool_choice="weather", strict=True).invoke(QUESTION)
    assert {call["name"] for call in answer.tool_calls} == {"weather"}, answer


def check_langchain_streams_of_calls(server):
    model = langchain(server).bind_tools([weather], tool_choice="required", strict=True)
    gathered = None
    for chunk in model.stream(QUESTION):
        gathered = chunk if gathered is None else gathered + chunk
    assert gathered.tool_calls == [
        {**call, "id": gathered.tool_calls[n]["id"]} for n, call in enumerate(model.invoke(QUESTION).tool_calls)
    ]


def check_langchain_responses(server):
    model = langchain(server, use_responses_api=True, seed=None)
    assert isinstance(model.with_structured_output(Count, method="json_schema").invoke(QUESTION), Count)
    assert model.bind_tools([weather], tool_choice="required", strict=True).invoke(QUESTION).tool_calls


def with_instructor(server, mode):
    client = openai.OpenAI(base_url=server + "/v1", api_key="none", max_retries=0)
    answer = instructor.from_openai(client, mode=mode).chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], response_model=Count, max_retries=0, **SETTINGS
    )
    assert isinstance(answer, Count), answer


def check_instructor_by_tools(server):
    with_instructor(server, instructor.Mode.TOOLS)


def check_instructor_by_strict_tools(server):
    with_instructor(server, instructor.Mode.TOOLS_STRICT)


def check_instructor_by_responses(server):
    client = openai.OpenAI(base_url=server + "/v1", api_key="none", max_retries=0)
    answer = instructor.from_openai(client, mode=instructor.Mode.RESPONSES_TOOLS).responses.create(
        model=MODEL, input=QUESTION, response_model=Count, max_retries=0, max_output_tokens=600, temperature=0
    )
    assert isinstance(answer, Count), answer


def check_instructor_by_schema(server):
    with_instructor(server, instructor.Mode.JSON_SCHEMA)


def check_instructor_by_json(server):
    # The mode `JSON` asks for an object of any schema, and leaves the schema to the prompt.
    class Anything(BaseModel):
        model_config = {"extra": "allow"}

    client = instructor.from_openai(openai.OpenAI(base_url=server + "/v1", api_key="none", max_retries=0),
                                    mode=instructor.Mode.JSON)
    for seed in range(8):
        try:
            answer = client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": QUESTION}], response_model=Anything, max_retries=0,
                temperature=1.5, max_tokens=500, seed=seed,
            )
            assert isinstance(answer, Anything)
            return
        except IncompleteOutputException:
            pass  # max_tokens cut it
    raise AssertionError("no object of eight came to an end")


def check_instructor_partially(server):
    client = instructor.from_openai(openai.OpenAI(base_url=server + "/v1", api_key="none", max_retries=0),
                                    mode=instructor.Mode.JSON_SCHEMA)
    parts = list(client.chat.completions.create_partial(
        model=MODEL, messages=[{"role": "user", "content": QUESTION}], response_model=Count, max_retries=0, **SETTINGS
    ))
    assert len(parts) > 1
    Count.model_validate(parts[-1].model_dump())


def agent(server, output, api=OpenAIChatModel):
    model = api(MODEL, provider=OpenAIProvider(base_url=server + "/v1", api_key="none"))
    settings = SETTINGS if api is OpenAIChatModel else {key: SETTINGS[key] for key in ("temperature", "max_tokens")}
    return Agent(model, output_type=output, retries=0, model_settings=settings)


def check_pydantic_ai_by_tool(server):
    assert isinstance(agent(server, Count).run_sync(QUESTION).output, Count)


def check_pydantic_ai_by_one_of_two_tools(server):
    found = agent(server, [ToolOutput(Count), ToolOutput(Failure)]).run_sync(QUESTION).output
    assert isinstance(found, (Count, Failure))


def check_pydantic_ai_natively(server):
    assert isinstance(agent(server, NativeOutput(Count)).run_sync(QUESTION).output, Count)


def check_pydantic_ai_natively_of_two_kinds(server):
    found = agent(server, NativeOutput([Count, Failure])).run_sync(QUESTION).output
    assert isinstance(found, (Count, Failure))


def check_pydantic_ai_streams(server):
    async def streamed():
        async with agent(server, NativeOutput(Count)).run_stream(QUESTION) as run:
            return [output async for output in run.stream_output(debounce_by=None)]

    outputs = asyncio.run(streamed())
    assert isinstance(outputs[-1], Count)


def check_pydantic_ai_responses(server):
    assert isinstance(agent(server, NativeOutput(Count), OpenAIResponsesModel).run_sync(QUESTION).output, Count)
    assert isinstance(agent(server, Count, OpenAIResponsesModel).run_sync(QUESTION).output, Count)


def in_a_dead_end(server, pattern, text):
    """Fields of a request whose form, at its beginning, has only tokens of this text, and then none."""
    tokens = httpx.post(server + "/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
    return {"structured_outputs": {"regex": pattern}, "allowed_token_ids": tokens}


def check_pydantic_ai_reads_a_dead_end(server):
    for api in (OpenAIChatModel, OpenAIResponsesModel):
        settings = {"extra_body": in_a_dead_end(server, "ab", "a"), "max_tokens": 9}
        result = agent(server, str, api).run_sync(QUESTION, model_settings=settings)
        assert (result.output, result.response.finish_reason) == ("a", "length"), (api, result)


def check_langchain_reads_a_dead_end(server):
    answer = langchain(server, extra_body=in_a_dead_end(server, "ab", "a")).invoke(QUESTION)
    assert (answer.content, answer.response_metadata["finish_reason"]) == ("a", "length"), answer


def check_instructor_reads_a_dead_end(server):
    client = instructor.from_openai(openai.OpenAI(base_url=server + "/v1", api_key="none", max_retries=0),
                                    mode=instructor.Mode.JSON_SCHEMA)
    tokens = in_a_dead_end(server, "", "{")["allowed_token_ids"]
    try:
        client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": QUESTION}], response_model=Count, max_retries=0,
            extra_body={"allowed_token_ids": tokens}, **SETTINGS
        )
    except IncompleteOutputException:
        return
    raise AssertionError("half an object was parsed")


def vote(server, how, budget=6):
    function = {"name": "weather", "parameters": {
        "type": "object", "properties": {"city": {"enum": ["Paris", "Zürich"]}, "days": {"enum": [1, 2]}},
        "required": ["city", "days"], "additionalProperties": False}}
    tools = [{"type": "function", "function": function}]
    model = OpenAICompatibleLanguageModel(server + "/v1", "none", MODEL, temperature=1.0, max_completion_tokens=200)

    async def voted():
        try:
            return await SelfConsistency(tool_vote=how).ainfer(
                model, QUESTION, budget, return_response_only=False, tools=tools, tool_choice="required"
            )
        finally:
            await model.close()

    result = asyncio.run(voted())
    assert len(result.responses) == budget and sum(result.response_counts.values()) == budget, result
    assert result.the_one["tool_calls"][0]["function"]["name"] == "weather"
    return result


def check_its_hub_votes_by_name(server):
    assert dict(vote(server, "tool_name").response_counts) == {"weather": 6}


def check_its_hub_votes_by_arguments(server):
    for how in ("tool_args", "tool_hierarchical", "tool_flat_all"):
        counts = vote(server, how).response_counts
        assert all(counts) and len(counts) >= 1, counts


if __name__ == "__main__":
    given = checks.options()
    MODEL = given.model
    checks.run(sys.modules[__name__], given.base_url)
