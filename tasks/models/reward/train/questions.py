"""Questions of three kinds, what the demo model is asked, and whether an answer is right.

A question is drawn by the demo's generators. `question` is what the reward model
reads before the answer; `prompt` is what the demo model continues: the question
behind the few-shot text of the task file. The demo's held-out rules hold here,
too: what the task files ask, no training question asks.
"""

import json
import random
from dataclasses import dataclass
from pathlib import Path

import evaluate
import functions
import make24
import words

MODELS = Path(__file__).resolve().parents[2]
TASKS, DEMO = MODELS.parent, MODELS / "demo"
SOLUTION_TESTS = 10


@dataclass(frozen=True)
class Question:
    """`reference`: the number, the program that tests a function, or the puzzle's numbers."""

    family: str
    question: str
    prompt: str
    reference: str


@dataclass(frozen=True)
class Family:
    """How its answers are sampled, as the task file says."""

    most: int
    stops: tuple[str, ...]


FAMILIES = {
    "words": Family(280, ("\n\n", "\nQuestion")),
    "functions": Family(160, ("\n\n", "\ndef ")),
    "make24": Family(120, ("\nInput", "\n\n")),
}


def shots(name: str) -> str:
    return (TASKS / name).read_text()


def bundled() -> set[str]:
    """What the task files ask."""
    lines = [json.loads(line) for name in ("words", "functions") for line in shots(f"{name}.jsonl").splitlines()]
    asked = {words.question_text(line["question"]) if "question" in line else line["prompt"] for line in lines}
    puzzles = [row.split(",")[1] for row in shots("make24.csv").splitlines()[1:]]
    return asked | {f"Input: {numbers}\nSteps:\n" for numbers in puzzles}


def word_question(rng: random.Random, heldout: bool) -> Question:
    one = words.problem(rng, heldout)
    text = words.question_text(one.question)
    return Question("words", text, shots("words_fewshot.txt") + text, str(words.render(one, rng, slip=0)[1]))


def function_question(rng: random.Random, heldout: bool) -> Question:
    one = functions.problem(rng, heldout)
    test = f"{functions.test_text(rng, one, SOLUTION_TESTS)}\ncheck({one.name})\n"
    return Question("functions", one.prompt, one.prompt, test)


def puzzle(rng: random.Random, heldout: bool) -> make24.State:
    if not heldout:
        return make24.puzzle(rng)
    while True:
        state = tuple(sorted(rng.randint(1, 20) for _ in range(4)))
        if make24.heldout_puzzle(state) and make24.ways(state):
            return state


def make24_question(rng: random.Random, heldout: bool) -> Question:
    state = puzzle(rng, heldout)
    text = make24.chain_question(state)
    return Question("make24", text, shots("make24_chain.txt") + text, make24.numbers(state))


MAKERS = {"words": word_question, "functions": function_question, "make24": make24_question}


def draw(rng: random.Random, family: str, heldout: bool, refused: set[str]) -> Question:
    """A question that is not among `refused`."""
    while True:
        one = MAKERS[family](rng, heldout)
        if one.question not in refused:
            return one


def right(question: Question, answers: list[str], pool) -> list[bool]:
    """Whether each answer is right. `pool`: processes that run the programs of functions."""
    if question.family == "words":
        return [evaluate.final_number(answer) == question.reference for answer in answers]
    if question.family == "make24":
        state = tuple(map(int, question.reference.split()))
        return [evaluate.solves(state, answer) for answer in answers]
    programs = [f"{question.question}{answer}\n{question.reference}" for answer in answers]
    distinct = sorted(set(programs))
    passed = dict(zip(distinct, pool.map(evaluate.program_passes, distinct)))
    return [passed[program] for program in programs]
