"""The mix of the four families, for short and for long rows."""

import random

import facts
import functions
import make24
import words
from document import Piece

SHORT_ROW, LONG_ROW = 1024, 4096
FAMILIES = ("words", "functions", "make24", "facts")
SHORT_SHARES = (30, 33, 19, 18)
LONG_SHARES = (22, 20, 16, 42)


def document(rng: random.Random, row: int) -> list[Piece]:
    """One training document for a row of `row` tokens."""
    long = row == LONG_ROW
    family = rng.choices(FAMILIES, LONG_SHARES if long else SHORT_SHARES)[0]
    if family == "words":
        return words.document(rng, rng.choice((1, 2, 4, 6, 8, 12) if long else (1, 1, 2, 2, 3, 4, 5)))
    if family == "functions":
        return functions.document(rng, rng.choice((1, 1, 2, 3, 5, 8) if long else (1, 1, 1, 2, 3)))
    if family == "make24":
        return make24.document(rng, long)
    if not long:
        return facts.document(rng, rng.uniform(60, 800))
    shortest, longest = rng.choice(((300, 1500), (1000, 3300), (2000, 3300)))
    return facts.document(rng, rng.uniform(shortest, longest))
