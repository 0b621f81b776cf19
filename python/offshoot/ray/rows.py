"""A row as a request, and its samples as columns. What draws the samples, and where finished ones are kept, is left to
the worker and the journal."""

from __future__ import annotations

import array
import dataclasses
import hashlib
import json
from typing import Any

import pyarrow as pa

from offshoot._llm import LLM, _ids_of
from offshoot._outputs import RequestOutput
from offshoot._params import SamplingParams
from offshoot.ray.blocks import with_column, without_nulls

#: Columns of which a row has one.
PROMPTS = ("prompt", "messages", "prompt_token_ids")

_SAMPLE = pa.struct([
    ("text", pa.string()), ("token_ids", pa.list_(pa.int64())), ("cumulative_logprob", pa.float64()),
    ("logprobs", pa.list_(pa.float64())), ("finish_reason", pa.string()), ("stop_reason", pa.string()),
])

#: The columns of results. The first two are those of the first sample; `generated_tokens` are token ids.
COLUMNS = {
    "generated_text": pa.string(), "generated_tokens": pa.list_(pa.int64()), "outputs": pa.list_(_SAMPLE),
    "num_input_tokens": pa.int64(), "num_generated_tokens": pa.int64(), "error": pa.string(),
}


@dataclasses.dataclass(slots=True)
class Request:
    """A row's prompt and how it is sampled. ``name``: what its random numbers follow from, beside the seed."""

    prompt: dict[str, Any]
    params: SamplingParams
    name: str

    def key(self, job: str) -> str:
        """What the samples follow from, as a hash: ``job`` stands for the model and its seed."""
        fields = {field.name: getattr(self.params, field.name) for field in dataclasses.fields(self.params)}
        hashed = hashlib.sha256(json.dumps([job, self.name, fields], sort_keys=True).encode())
        hashed.update(array.array("Q", self.prompt["prompt_token_ids"]).tobytes())
        return hashed.hexdigest()[:32]


@dataclasses.dataclass(slots=True)
class Result:
    """What became of a row: its samples, or why there are none."""

    samples: list[dict[str, Any]]
    input_tokens: int
    error: str | None = None

    @classmethod
    def of(cls, output: RequestOutput) -> "Result":
        samples = []
        for each in output.outputs:
            logprobs = None
            if each.logprobs is not None:
                logprobs = [row[token].logprob for token, row in zip(each.token_ids, each.logprobs)]
            samples.append({
                "text": each.text, "token_ids": list(each.token_ids), "cumulative_logprob": each.cumulative_logprob,
                "logprobs": logprobs, "finish_reason": each.finish_reason,
                "stop_reason": None if each.stop_reason is None else str(each.stop_reason)})
        return cls(samples, len(output.prompt_token_ids))


def requests(
    llm: LLM, rows: list[dict[str, Any]], defaults: dict[str, Any], row: str | None
) -> list[Request | Exception]:
    """The request of each row, or what is wrong with it."""
    made = [_attempt(lambda: _request(llm, each, defaults, row)) for each in rows]
    _encode(llm, [each for each in made if isinstance(each, Request)])
    return [_attempt(lambda: _fitting(llm, each)) if isinstance(each, Request) else each for each in made]


def with_results(table: pa.Table, results: list[Result]) -> pa.Table:
    """The table with the columns of results."""
    first = [result.samples[0] if result.samples else None for result in results]
    generated = [sum(len(sample["token_ids"]) for sample in result.samples) for result in results]
    values = {
        "generated_text": [sample and sample["text"] for sample in first],
        "generated_tokens": [sample and sample["token_ids"] for sample in first],
        "outputs": [None if result.error else result.samples for result in results],
        "num_input_tokens": [None if result.error else result.input_tokens for result in results],
        "num_generated_tokens": [None if result.error else count for result, count in zip(results, generated)],
        "error": [result.error for result in results],
    }
    for name, kind in COLUMNS.items():
        table = with_column(table, name, pa.array(values[name], kind))
    return table


def sampling_of(row: dict[str, Any], defaults: dict[str, Any]) -> SamplingParams:
    """A row's own parameters before the defaults."""
    given = row.get("sampling_params")
    if isinstance(given, SamplingParams):
        given = {field.name: getattr(given, field.name) for field in dataclasses.fields(given)}
    if given is not None and not isinstance(given, dict):
        raise TypeError(f"sampling_params: expected a dict, found {given!r}")
    fields = {**defaults, **without_nulls(given or {})}
    if row.get("n") is not None:
        fields["n"] = row["n"]
    return SamplingParams.from_optional(**fields)


def prompt_of(llm: LLM, row: dict[str, Any]) -> dict[str, Any]:
    """The row's prompt as ``LLM.generate`` takes it; ``special``: whether its text gets the model's special tokens."""
    given = [name for name in PROMPTS if row.get(name) is not None]
    if len(given) != 1:
        raise ValueError(f"row: expected one of {', '.join(PROMPTS)}, found {', '.join(given) or 'none'}")
    value = row[given[0]]
    if given[0] == "prompt_token_ids":
        return {"prompt_token_ids": _ids_of(value)}
    if given[0] == "prompt":
        if not isinstance(value, str):
            raise TypeError(f"prompt: expected a text, found {value!r}")
        return {"prompt": value, "special": True}
    messages = without_nulls(value)
    text = llm.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return {"prompt": text, "special": False}


def _request(llm: LLM, row: dict[str, Any], defaults: dict[str, Any], number: str | None) -> Request:
    params = sampling_of(row, defaults)
    if params.prompt_logprobs is not None:
        raise NotImplementedError("prompt_logprobs: the results of a processor have no column for them")
    if params.seed is not None:
        return Request(prompt_of(llm, row), params, "")
    if number is None:
        raise ValueError("seed: expected one in each row's sampling_params, as OffshootConfig(row=None) says, found "
                         "none")
    if row.get(number) is None:
        raise ValueError(f"{number}: expected the row's number, found none")
    return Request(prompt_of(llm, row), params, str(row[number]))


def _encode(llm: LLM, made: list[Request]) -> None:
    """Gives each text its tokens, all at once; a text that has none gets what is wrong with it instead."""
    for special in (False, True):
        prompts = [request.prompt for request in made if request.prompt.get("special") is special]

        def encoded(texts: list[str], special: bool = special) -> Any:
            return _attempt(lambda: llm._engine.tokenizer.encode(texts, special))

        tokens = encoded([prompt["prompt"] for prompt in prompts])
        if isinstance(tokens, Exception):
            alone = [encoded([prompt["prompt"]]) for prompt in prompts]
            tokens = [each if isinstance(each, Exception) else each[0] for each in alone]
        for prompt, ids in zip(prompts, tokens):
            prompt["prompt_token_ids"] = ids
            del prompt["special"]


def _fitting(llm: LLM, request: Request) -> Request:
    if isinstance(request.prompt["prompt_token_ids"], Exception):
        raise request.prompt["prompt_token_ids"]
    tokens = len(request.prompt["prompt_token_ids"])
    if not tokens:
        raise ValueError("prompt: expected at least one token, found none")
    if not request.params.truncate_prompt_tokens and tokens >= llm.max_model_len:
        raise ValueError(f"prompt: expected fewer tokens than the context's {llm.max_model_len}, found {tokens}")
    return request


def _attempt(make) -> Any:
    try:
        return make()
    except UnicodeError as error:
        return ValueError(str(error))
    except (TypeError, ValueError, NotImplementedError, OverflowError) as error:
        return error
