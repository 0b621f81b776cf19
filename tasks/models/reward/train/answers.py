"""Answers with labels as training rows.

A row is `ROW + 1` int16 numbers, token + (kind << 12), packed by the demo's
packer. The kind of a line break behind a line says whether the whole answer is
right: that is all the teaching there is. What a right answer writes is learned
as text, too, which teaches the small model to calculate; wrong ones are read.

Answers come from two places: the demo's samples, and the demo's generators,
which write endless ones in worker processes, wrong ones among them (slips,
attempts, bodies of other functions).
"""

import json
import os
import random
import traceback
from pathlib import Path
from typing import NamedTuple

import functions
import make24
import numpy as np
import rows
import words
from rows import GIVEN, KIND_SHIFT, PADDING, PRODUCED
from tokenizer import BEGIN, END
from tokenizers import Tokenizer

ROW = 512
WRONG, RIGHT = 3, 4  # kinds of line breaks
TOKENS_PER_SHARD = 1 << 19
ANSWERS_AT_ONCE = 256
SLIPS = (0.05, 0.1, 0.2)
ATTEMPTS = 0.7
OTHER_BODIES = 0.6
FAMILY_SHARES = {"words": 45, "functions": 25, "make24": 30}


class Answer(NamedTuple):
    question: str
    text: str
    right: bool


def word_answer(rng: random.Random) -> Answer:
    one = words.problem(rng)
    text, number = words.render(one, rng, rng.choice(SLIPS))
    return Answer(words.question_text(one.question), f" {text}", number == words.render(one, rng, 0)[1])


def make24_answer(rng: random.Random) -> Answer:
    state = make24.puzzle(rng)
    text = make24.chain(rng, state, rng.random() < ATTEMPTS).rstrip("\n")
    return Answer(make24.chain_question(state), text, text.endswith(" = 24"))


def same(one: functions.Problem, body: str, rng: random.Random) -> bool:
    """Whether a function with this body gives what `one` gives."""
    scope: dict = {}
    signature = one.prompt[: one.prompt.index("\n")]
    try:
        exec(f"{signature}\n{body}\n", scope)  # our own text
        inputs = [functions.arguments(rng, one.inputs, longest=8) for _ in range(10)]
        return all(scope[one.name](*values) == one.call(*values) for values in inputs)
    except Exception:
        return False


def function_answer(rng: random.Random) -> Answer:
    one = functions.problem(rng)
    if rng.random() >= OTHER_BODIES:
        return Answer(one.prompt, one.body.rstrip("\n"), True)
    while True:
        other = functions.problem(rng)
        if other.family == one.family and other.inputs == one.inputs:
            return Answer(one.prompt, other.body.rstrip("\n"), same(one, other.body, rng))


MAKERS = {"words": word_answer, "functions": function_answer, "make24": make24_answer}


def made(rng: random.Random) -> Answer:
    family = rng.choices(list(FAMILY_SHARES), list(FAMILY_SHARES.values()))[0]
    return MAKERS[family](rng)


def sampled(path: Path) -> list[Answer]:
    lines = map(json.loads, path.read_text().splitlines())
    return [Answer(line["question"], *one) for line in lines for one in zip(line["answers"], line["right"])]


def lines(answer: str) -> list[str]:
    """The parts that have a value: lines with text."""
    return [line for line in answer.split("\n") if line.strip()]


def encode(tokenizer: Tokenizer, answers: list[Answer]) -> list[np.ndarray]:
    """Each as begin, the question, and the lines with a labelled line break behind each."""
    (line_break,) = tokenizer.encode("\n", add_special_tokens=False).ids
    parts = [(answer.question, *lines(answer.text)) for answer in answers]
    encodings = iter(tokenizer.encode_batch([part for own in parts for part in own], add_special_tokens=False))
    begin = np.array([BEGIN | PADDING << KIND_SHIFT], np.int16)
    encoded = []
    for answer, own in zip(answers, parts):
        pieces = [begin, np.array(next(encodings).ids, np.int16) | GIVEN << KIND_SHIFT]
        written = (PRODUCED if answer.right else GIVEN) << KIND_SHIFT
        end = np.array([line_break | (RIGHT if answer.right else WRONG) << KIND_SHIFT], np.int16)
        for _ in own[1:]:
            pieces += [np.array(next(encodings).ids, np.int16) | written, end]
        encoded.append(np.concatenate(pieces))
    return encoded


def pack(tokenizer: Tokenizer, answers: list[Answer]) -> np.ndarray:
    """Rows of all answers."""
    packer = rows.Packer(ROW + 1)
    for start in range(0, len(answers), 4096):
        for encoded in encode(tokenizer, answers[start : start + 4096]):
            packer.add(encoded)
    unfinished = [np.pad(row, (0, ROW + 1 - len(row)), constant_values=END) for row in packer.open]
    return np.stack(packer.closed + unfinished)


def work(worker: int, seed: int, tokenizer_json: str, queue) -> None:
    """A worker's life: shards of made answers for ever."""
    try:
        os.nice(5)
        rng = random.Random(f"reward {seed}/{worker}")
        tokenizer = Tokenizer.from_str(tokenizer_json)
        packer = rows.Packer(ROW + 1)
        while True:
            while len(packer.closed) * ROW < TOKENS_PER_SHARD:
                for encoded in encode(tokenizer, [made(rng) for _ in range(ANSWERS_AT_ONCE)]):
                    packer.add(encoded)
            queue.put(rows.Shard(ROW, np.stack(packer.closed)))
            packer.closed.clear()
    except BaseException:
        queue.put(rows.WorkerError(worker, traceback.format_exc()))
        raise
