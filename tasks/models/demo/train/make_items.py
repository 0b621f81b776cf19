"""Writes the held-out task items: python make_items.py --model DIR --out DIR

Everything is drawn from the parts that the generators keep out of training, by
fixed seeds. The few-shot texts show clean examples: no slips, no attempts.
"""

import argparse
import json
import random
import re
from itertools import combinations_with_replacement
from pathlib import Path

from tokenizers import Tokenizer

import facts
import functions
import make24
import words
from document import full_text

WORD_PROBLEMS = 200
WORD_SHOTS = (3, 4, 5, 4)  # lines of working
FEWEST_LINES = 3
FUNCTIONS_PER_LEVEL = (24, 68, 68)
FACT_DOCUMENTS = {500: 10, 1000: 10, 2000: 20}
FACTS_PER_DOCUMENT, QUESTIONS_PER_DOCUMENT = 8, 4
CHOICES = 4
LARGEST_START = 13
CHAIN_SHOTS, VALUE_SHOTS = 4, 24


def word_items(rng: random.Random) -> list[dict]:
    items, seen = [], set()
    while len(items) < WORD_PROBLEMS:
        one = words.problem(rng, heldout=True, level=len(items) % len(words.LEVELS))
        if one.question in seen or len(one.working) < FEWEST_LINES:
            continue
        seen.add(one.question)
        items.append(
            {
                "id": f"words/{len(items)}",
                "question": one.question,
                "answer": words.render(one, rng, slip=0)[0],
                "level": one.level,
                "steps": len(one.working),
            }
        )
    return items


def word_fewshot(rng: random.Random) -> str:
    text = ""
    for lines in WORD_SHOTS:
        one = words.problem(rng, level=1, lines=lines)
        text += words.question_text(one.question) + " " + words.render(one, rng, slip=0)[0] + "\n\n"
    return text


def function_items(rng: random.Random) -> list[dict]:
    levels = [level for level, count in enumerate(FUNCTIONS_PER_LEVEL) for _ in range(count)]
    rng.shuffle(levels)
    items, seen = [], set()
    while len(items) < len(levels):
        one = functions.problem(rng, heldout=True, level=levels[len(items)])
        if one.key in seen:
            continue
        seen.add(one.key)
        items.append(
            {
                "task_id": f"functions/{len(items)}",
                "prompt": one.prompt,
                "entry_point": one.name,
                "canonical_solution": one.body,
                "test": functions.test_text(rng, one),
                "family": one.family,
                "level": one.level,
            }
        )
    return items


def fact_item(rng: random.Random, tokenizer: Tokenizer, length: int, name: str) -> dict:
    """A document within 5% of `length` tokens."""
    aim = float(length)
    while True:
        text, questions = facts.text_with_facts(rng, aim, FACTS_PER_DOCUMENT, heldout=True)
        tokens = len(tokenizer.encode(text).ids)
        if abs(tokens - length) < 0.05 * length:
            break
        aim *= length / tokens
    asked = [
        {"question": q.text, "answer": q.answer, "depth": round(q.depth, 3)}
        for q in rng.sample(questions, QUESTIONS_PER_DOCUMENT)
    ]
    return {"id": name, "length": length, "tokens": tokens, "document": text, "questions": asked}


def fact_items(rng: random.Random, tokenizer: Tokenizer, documents: dict[int, int]) -> list[dict]:
    return [
        fact_item(rng, tokenizer, length, f"facts/{length}/{i}")
        for length, count in documents.items()
        for i in range(count)
    ]


def with_choices(item: dict) -> dict:
    """Four values for each question: the right one, and others of its kind, such as the document names first."""
    rng = random.Random("choices " + item["id"])
    for question in item["questions"]:
        right = question["answer"]
        values = next((kind.values for kind in facts.KINDS if kind.values and right in kind.values), None)
        values = values or [str(number) for number in range(100, 1000)]
        others = rng.sample([value for value in values if value != right], len(values) - 1)
        told = set(re.findall(r"\w+", item["document"]))
        others.sort(key=lambda value: value not in told)
        question["choices"] = sorted([right, *others[: CHOICES - 1]])
    return item


def make24_puzzles() -> list[make24.State]:
    """All solvable held-out puzzles from 1 to 13, those with the most ways first."""
    starts = combinations_with_replacement(range(1, LARGEST_START + 1), 4)
    kept = [state for state in starts if make24.heldout_puzzle(state) and make24.ways(state)]
    return sorted(kept, key=lambda state: (-make24.ways(state), state))


def propose_shot(rng: random.Random) -> str:
    state = make24.puzzle(rng)
    return make24.propose_question(state) + make24.listed_steps(rng, state) + "\n"


def write_lines(path: Path, items: list[dict]) -> None:
    path.write_text("".join(json.dumps(item) + "\n" for item in items))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True, help="folder with tokenizer.json")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))

    write_lines(arguments.out / "words.jsonl", word_items(random.Random("words")))
    write_lines(arguments.out / "functions.jsonl", function_items(random.Random("functions")))
    documents = fact_items(random.Random("facts"), tokenizer, FACT_DOCUMENTS)
    write_lines(arguments.out / "facts.jsonl", [with_choices(document) for document in documents])
    puzzles = enumerate(make24_puzzles(), start=1)
    rows = "".join(f"{rank},{make24.numbers(state)}\n" for rank, state in puzzles)
    (arguments.out / "make24.csv").write_text("Rank,Puzzles\n" + rows)

    chain_shots = make24.chain_document(random.Random("chain"), CHAIN_SHOTS, attempts=0)
    texts = {
        "words_fewshot.txt": word_fewshot(random.Random("shots")),
        "make24_chain.txt": full_text(chain_shots),
        "make24_propose.txt": propose_shot(random.Random("propose")),
        "make24_value.txt": full_text(make24.value_document(random.Random("value"), VALUE_SHOTS)),
    }
    for name, text in texts.items():
        (arguments.out / name).write_text(text)


if __name__ == "__main__":
    main()
