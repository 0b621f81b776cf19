"""Documents to training rows: encode, mark what is to be produced, pack, and hand over.

A row is `length + 1` int16 numbers, token + (kind << 12). Worker processes fill
a queue without end; an error in a worker is sent through the same queue, so
that the trainer stops with it instead of waiting for ever.
"""

import os
import random
import traceback
from typing import NamedTuple

import numpy as np
from tokenizers import Tokenizer

import mixture
from document import full_text
from tokenizer import BEGIN, END

KIND_SHIFT = 12
TOKEN_MASK = (1 << KIND_SHIFT) - 1
PADDING, GIVEN, PRODUCED = 0, 1, 2

DOCUMENTS_AT_ONCE = 128
OPEN_ROWS = 24
LONG_SHARD_EVERY = 4
TOKENS_PER_SHARD = 1 << 19


class Shard(NamedTuple):
    length: int
    rows: np.ndarray


class WorkerError(NamedTuple):
    worker: int
    trace: str


def encode(tokenizer: Tokenizer, documents: list) -> list[np.ndarray]:
    """Each document as begin, marked tokens, end. A token is of the kind of its first character."""
    encodings = tokenizer.encode_batch([full_text(d) for d in documents], add_special_tokens=False)
    begin = np.array([BEGIN | PADDING << KIND_SHIFT], np.int16)
    end = np.array([END | PRODUCED << KIND_SHIFT], np.int16)
    encoded = []
    for document, encoding in zip(documents, encodings):
        piece_ends = np.cumsum([len(piece.text) for piece in document])
        starts = np.array(encoding.offsets, np.int64)[:, 0]
        kinds = np.array([PRODUCED if piece.produced else GIVEN for piece in document], np.int16)
        marked = (
            np.array(encoding.ids, np.int16) | kinds[np.searchsorted(piece_ends, starts, side="right")] << KIND_SHIFT
        )
        encoded.append(np.concatenate([begin, marked, end]))
    return encoded


class Packer:
    """First-fit into a few open rows; the fullest is closed when there are too many."""

    def __init__(self, size: int):
        self.size = size
        self.open: list[np.ndarray] = []
        self.closed: list[np.ndarray] = []

    def add(self, document: np.ndarray) -> None:
        document = document[: self.size]
        for i, row in enumerate(self.open):
            if len(row) + len(document) <= self.size:
                self.open[i] = np.concatenate([row, document])
                break
        else:
            self.open.append(document)
        if len(self.open) > OPEN_ROWS:
            fullest = self.open.pop(max(range(len(self.open)), key=lambda i: len(self.open[i])))
            self.closed.append(np.pad(fullest, (0, self.size - len(fullest)), constant_values=END))


def make_shard(rng: random.Random, tokenizer: Tokenizer, length: int) -> Shard:
    packer = Packer(length + 1)
    wanted = TOKENS_PER_SHARD // length
    while len(packer.closed) < wanted:
        documents = [mixture.document(rng, length) for _ in range(DOCUMENTS_AT_ONCE)]
        for encoded in encode(tokenizer, documents):
            packer.add(encoded)
    return Shard(length, np.stack(packer.closed[:wanted]))


def work(worker: int, seed: int, tokenizer_json: str, queue) -> None:
    """A worker's life: shards for ever."""
    try:
        os.nice(5)
        rng = random.Random(f"{seed}/{worker}")
        tokenizer = Tokenizer.from_str(tokenizer_json)
        made = 0
        while True:
            long = made % LONG_SHARD_EVERY == LONG_SHARD_EVERY - 1
            queue.put(make_shard(rng, tokenizer, mixture.LONG_ROW if long else mixture.SHORT_ROW))
            made += 1
    except BaseException:
        queue.put(WorkerError(worker, traceback.format_exc()))
        raise
