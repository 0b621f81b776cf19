"""Make 24: chains, lists of next steps, and verdicts on what is left.

Only steps between whole numbers from 0 to 200 count. A state is a sorted tuple
of the numbers left.

**Attempts are deliberate.** A share of the chains takes legal steps at random
and writes down whatever comes out, so that a single chain is weak while the
verdicts are strong: search has something to gain.

Held out: every four-number puzzle with crc32("a b c d") % 8 == 0 is never a
starting point in training; states of three and fewer numbers may be shared.
"""

import random
from functools import cache
from typing import NamedTuple

from document import Piece, given, is_heldout, produced

HELDOUT_ONE_IN = 8
LARGEST = 200
ATTEMPTS = 0.55
LISTED_STEPS = 12
VERDICTS = ("sure", "likely", "impossible")
SURE_FROM = {1: 1, 2: 1, 3: 3}  # ways to 24 from which a state of that size is "sure"

CHAIN_HEADER = (
    "Use numbers and basic arithmetic operations (+ - * /) to obtain 24. Each step, you are only allowed "
    "to choose two of the remaining numbers to obtain a new number.\n"
)
VALUE_HEADER = "Evaluate if given numbers can reach 24 (sure/likely/impossible)\n"

State = tuple[int, ...]


class Move(NamedTuple):
    a: int
    op: str
    b: int
    result: int
    left: State

    def line(self) -> str:
        return f"{self.a} {self.op} {self.b} = {self.result} (left: {numbers(self.left)})"


def numbers(state: State) -> str:
    return " ".join(map(str, state))


@cache
def moves(state: State) -> list[Move]:
    """Every step from a state, each distinct calculation once."""
    found = {}
    for i, low in enumerate(state):
        for j in range(i + 1, len(state)):
            high = state[j]
            rest = state[:i] + state[i + 1 : j] + state[j + 1 :]
            results = [(low, "+", high, low + high), (high, "-", low, high - low), (low, "*", high, low * high)]
            if low and high % low == 0:
                results.append((high, "/", low, high // low))
            for a, op, b, result in results:
                if result <= LARGEST:
                    found[a, op, b] = Move(a, op, b, result, tuple(sorted((*rest, result))))
    return list(found.values())


@cache
def ways(state: State) -> int:
    """How many sequences of steps lead to 24."""
    if len(state) == 1:
        return int(state[0] == 24)
    return sum(ways(move.left) for move in moves(state))


def verdict(state: State) -> str:
    if ways(state) == 0:
        return "impossible"
    return "sure" if ways(state) >= SURE_FROM[len(state)] else "likely"


def heldout_puzzle(state: State) -> bool:
    return len(state) == 4 and is_heldout(numbers(state), HELDOUT_ONE_IN)


def puzzle(rng: random.Random, size: int = 4) -> State:
    """A solvable training puzzle, uniform over multisets."""
    while True:
        largest = 13 if size == 4 and rng.random() < 0.7 else 20
        drawn = sorted(rng.sample(range(1, largest + size), size))
        state = tuple(n - i for i, n in enumerate(drawn))
        if not heldout_puzzle(state) and ways(state):
            return state


def state_in_play(rng: random.Random) -> State:
    """A state of one to three numbers such as a search meets."""
    state = puzzle(rng, rng.choices((4, 3), (8, 2))[0])
    left = rng.choices((1, 2, 3), (18, 34, 48))[0]
    while len(state) > min(left, 3) or len(state) == 4:
        options = moves(state)
        solvable = [move for move in options if ways(move.left)]
        state = rng.choice(solvable if solvable and rng.random() < 0.4 else options).left
    return state


class Term(NamedTuple):
    """A part of the final expression; rank 0 = a number, 1 = a sum, 2 = a product."""

    value: int
    text: str
    rank: int

    def bracketed(self, needed: bool) -> str:
        return f"({self.text})" if needed else self.text


def joined(a: Term, move: Move, b: Term) -> Term:
    left = a.bracketed(a.rank == 1 and move.op in "*/")
    right = b.bracketed((b.rank == 1 and move.op in "*/-") or (b.rank == 2 and move.op == "/"))
    return Term(move.result, f"{left} {move.op} {right}", 1 if move.op in "+-" else 2)


def chain(rng: random.Random, state: State, attempt: bool = False) -> str:
    """Steps to the last number and the answer line; an attempt does not look where it goes."""
    lines = []
    terms = [Term(n, str(n), 0) for n in state]
    while len(state) > 1:
        move = rng.choice([m for m in moves(state) if attempt or ways(m.left)])
        lines.append(move.line())
        a = terms.pop(next(i for i, term in enumerate(terms) if term.value == move.a))
        b = terms.pop(next(i for i, term in enumerate(terms) if term.value == move.b))
        terms.append(joined(a, move, b))
        state = move.left
    return "\n".join(lines) + f"\nAnswer: {terms[0].text} = {terms[0].value}\n"


def listed_steps(rng: random.Random, state: State) -> str:
    """Up to 12 distinct steps; those that keep 24 within reach tend to come first."""

    def key(move: Move) -> float:
        return rng.random() ** (0.2 if ways(move.left) else 1.0)

    best = sorted(moves(state), key=key, reverse=True)[:LISTED_STEPS]
    return "".join(move.line() + "\n" for move in best)


def chain_question(state: State) -> str:
    return f"Input: {numbers(state)}\nSteps:\n"


def propose_question(state: State) -> str:
    return f"Input: {numbers(state)}\nPossible next steps:\n"


def value_question(state: State) -> str:
    return f"{numbers(state)}\n"


def chain_document(rng: random.Random, shots: int, attempts: float = ATTEMPTS) -> list[Piece]:
    pieces = [given(CHAIN_HEADER)]
    for _ in range(shots):
        state = puzzle(rng, 4 if rng.random() < 0.85 else 3)
        pieces += [given(chain_question(state)), produced(chain(rng, state, rng.random() < attempts))]
    return pieces


def propose_document(rng: random.Random, shots: int) -> list[Piece]:
    pieces = []
    for i in range(shots):
        state = puzzle(rng) if rng.random() < 0.5 else state_in_play(rng)
        while len(state) < 2:
            state = state_in_play(rng)
        pieces += [given(propose_question(state)), produced(listed_steps(rng, state))]
        if i < shots - 1:
            pieces.append(produced("\n"))
    return pieces


def value_document(rng: random.Random, shots: int) -> list[Piece]:
    pieces = [given(VALUE_HEADER)]
    for _ in range(shots):
        state = state_in_play(rng)
        if not ways(state) and rng.random() < 0.3:  # fewer hopeless states than chance gives
            state = state_in_play(rng)
        pieces += [given(value_question(state)), produced(verdict(state) + "\n")]
    return pieces


def document(rng: random.Random, long: bool) -> list[Piece]:
    kind = rng.choices(("chain", "propose", "value"), (43, 23, 34))[0]
    if kind == "chain":
        return chain_document(rng, rng.randint(1, 6) * (2 if long else 1))
    if kind == "propose":
        return propose_document(rng, rng.choice((1, 1, 2, 3)))
    return value_document(rng, rng.choice((3, 6, 10, 16, 24, 32)))
