"""What a training document is, and the rule that keeps text out of training.

A document is a list of pieces. `given` pieces are context (a question, a
docstring, a header): the model sees them and is taught them only weakly.
`produced` pieces are what it must write (working, bodies, verdicts).
"""

import zlib
from typing import NamedTuple


class Piece(NamedTuple):
    text: str
    produced: bool


def given(text: str) -> Piece:
    return Piece(text, False)


def produced(text: str) -> Piece:
    return Piece(text, True)


def full_text(document: list[Piece]) -> str:
    return "".join(piece.text for piece in document)


def is_heldout(key: str, one_in: int) -> bool:
    """True for about one key in `one_in`: such keys are for tests only."""
    return zlib.crc32(key.encode()) % one_in == 0
