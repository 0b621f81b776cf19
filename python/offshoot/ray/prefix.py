"""``by_prefix``: a job's rows as parts of about equal work that share what they can, by the planner's own cut of the
tree of all prompts; and what the cut costs. Which actor takes which part is left to Ray."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from typing import TYPE_CHECKING, Any, cast

import ray
import ray.data

from offshoot import _native
from offshoot._llm import Tokenizer, _ids_of
from offshoot._params import _whole
from offshoot.ray.blocks import ROW, check_dataset, columns, gather, in_order, numbered, without_nulls
from offshoot.ray.rows import sampling_of

#: Rows of a batch of ``ray.data.llm``, with which a cut is compared.
BATCH = 32


@dataclasses.dataclass(frozen=True, slots=True)
class PartOfJob:
    """A part: its rows, the prompt tokens and samples' tokens that it computes, and both weighted by their costs."""

    rows: int
    prompt_tokens: int
    output_tokens: int
    work: int


@dataclasses.dataclass(frozen=True, slots=True)
class PrefixCut:
    """What a cut computes. ``unit``: tokens, or pieces of text where no tokenizer was given. ``prompt_tokens``: of all
    prompts, one by one; ``distinct``: what one process computes; ``by_parts``: what the parts compute; ``in_batches``:
    what batches of 32 rows in order of arrival compute."""

    unit: str
    rows: int
    prompt_tokens: int
    distinct: int
    by_parts: int
    in_batches: int
    parts: list[PartOfJob]

    @property
    def twice(self) -> int:
        """What is computed again because it is shared by parts."""
        return self.by_parts - self.distinct

    def __str__(self) -> str:
        share = 100.0 * self.twice / max(1, self.distinct)
        return (f"{len(self.parts)} parts of {self.rows:,} prompts with {self.distinct:,} distinct {self.unit}: the "
                f"parts compute {self.twice:,} of them twice ({share:.2f} %); batches of {BATCH} in order of arrival "
                f"would compute {self.in_batches:,}")


if TYPE_CHECKING:
    class Parts(ray.data.Dataset):
        """The dataset that ``by_prefix`` returns."""

        cut: PrefixCut


def by_prefix(
    dataset: ray.data.Dataset,
    parts: int,
    *,
    prompt: str = "prompt",
    n: int | None = None,
    max_tokens: int | None = None,
    tokenizer: Any = None,
    model: str | os.PathLike | None = None,
    row: str = ROW,
    show: bool = True,
) -> Parts:
    """The rows in ``parts`` blocks of about equal work, depth-first through the tree of all prompts: prompts that begin
    alike are together, and as little as possible is in two blocks. ``.cut`` of the dataset says what that costs
    (``PrefixCut``); ``show`` prints it.

    ``prompt``: the column of texts, token ids or messages. ``tokenizer``: the model's, as ``LLM.tokenizer`` or
    transformers has it, or a function from a list of texts to lists of token ids; ``model``: its folder instead.
    Without either, pieces of text stand for tokens. ``n`` and ``max_tokens``: samples of a
    prompt and tokens that one is expected to have; by default those of the columns ``n`` and ``sampling_params``.
    ``row``: the column that numbers the rows as they were given, made if it is missing: sort by it for their order.

    Where the lengths of samples are uncertain, cut several times as many parts as there are actors, which take them one
    by one.
    """
    parts = _whole("parts", parts, 1)
    check_dataset(dataset)
    blocks = numbered(in_order(dataset), row)
    read = ray.get([columns(block, [row, prompt, "sampling_params", "n"]) for block in blocks])
    places = [(block, at) for block, table in enumerate(read) for at in range(table.num_rows)]
    if not places:
        raise ValueError("dataset: expected at least one row, found none")
    lacking = [table for table in read if table.num_rows and prompt not in table.column_names]
    if lacking:
        raise ValueError(f"{prompt}: expected a column of prompts, found none of this name: name it by prompt=")
    rows = [each for table in read for each in table.to_pylist()]
    prompts = [each[prompt].tolist() if hasattr(each[prompt], "tolist") else each[prompt] for each in rows]
    tokens, unit = _tokens(prompts, tokenizer, model)
    outputs = [_expected(each, n, max_tokens) for each in rows]
    found = _native.prompt_parts(tokens, outputs, parts)
    made = [part for part in found.parts if part.prompts]
    cut = PrefixCut(
        unit=unit, rows=len(rows), prompt_tokens=sum(map(len, tokens)), distinct=found.distinct_tokens,
        by_parts=sum(part.prompt_tokens for part in made), in_batches=_native.batch_tokens(tokens, BATCH),
        parts=[PartOfJob(len(part.prompts), part.prompt_tokens, part.output_tokens, part.work) for part in made])
    if show:
        print(f"offshoot: {cut}", file=sys.stderr)
    gathered = [gather(blocks, [places[at] for at in part.prompts]) for part in made]
    result = cast("Parts", ray.data.from_arrow_refs(gathered))
    result.cut = cut
    return result


def _expected(row: dict[str, Any], n: int | None, max_tokens: int | None) -> int:
    """Tokens to be sampled of a row."""
    if n is not None and max_tokens is not None:
        return _whole("n", n, 1) * _whole("max_tokens", max_tokens, 1)
    own = sampling_of(row, {})
    samples = own.samples if n is None else _whole("n", n, 1)
    return samples * ((own.max_tokens or 1) if max_tokens is None else _whole("max_tokens", max_tokens, 1))


def _tokens(prompts: list[Any], tokenizer: Any, model: str | os.PathLike | None) -> tuple[list[list[int]], str]:
    """The prompts' tokens, or what stands for them, and which of both."""
    if all(not isinstance(prompt, str) and _is_ids(prompt) for prompt in prompts):
        return [_ids_of(prompt) for prompt in prompts], "tokens"
    if tokenizer is not None and model is not None:
        raise TypeError("tokenizer: expected this or model, found both")
    if model is not None:
        tokenizer = Tokenizer.of_folder(model)
    texts, special = [], []
    for prompt in prompts:
        if isinstance(prompt, str):
            texts.append(prompt)
            special.append(True)
        elif isinstance(prompt, (list, tuple)) and prompt and isinstance(prompt[0], dict):
            texts.append(_text_of(without_nulls(prompt), tokenizer))
            special.append(False)
        else:
            raise TypeError(f"prompt: expected a text, messages or, in all rows, token ids, found {prompt!r}")
    if tokenizer is None:
        return _native.text_keys(texts), "pieces of text"
    tokens: list[Any] = [None] * len(texts)
    for wanted in (True, False):
        at = [index for index, each in enumerate(special) if each is wanted]
        if at:
            for index, ids in zip(at, _encoded(tokenizer, [texts[index] for index in at], wanted)):
                tokens[index] = list(ids)
    return tokens, "tokens"


def _is_ids(prompt: Any) -> bool:
    return isinstance(prompt, (list, tuple)) and len(prompt) > 0 and isinstance(prompt[0], int)


def _text_of(messages: list[dict[str, Any]], tokenizer: Any) -> str:
    """A conversation's text by the chat template; without a tokenizer its JSON, which begins alike where they do."""
    if tokenizer is None:
        return json.dumps(messages)
    if not hasattr(tokenizer, "apply_chat_template"):
        raise TypeError("prompt: messages need a tokenizer with a chat template: tokenizer=LLM.tokenizer, or one of "
                        "transformers")
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def _encoded(tokenizer: Any, texts: list[str], special: bool) -> list[list[int]]:
    if hasattr(tokenizer, "apply_chat_template"):
        encoded = tokenizer(texts, add_special_tokens=special)
    else:
        encoded = tokenizer(texts)
    ids = encoded["input_ids"] if hasattr(encoded, "keys") else encoded
    if len(ids) != len(texts):
        raise ValueError(f"tokenizer: expected token ids for each of {len(texts)} texts, found {len(ids)}")
    return ids
