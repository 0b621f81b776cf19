"""Measures a model on the held-out items: python evaluate.py --model DIR --items DIR --out numbers.json

Sampled programs run in worker processes under a time limit and nothing more:
this is for samples of this model, whose vocabulary holds no mischief, not a
sandbox.
"""

import argparse
import collections
import json
import multiprocessing
import random
import re
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer

import facts
import llama
import make24
import make_items
import words
from sampler import Sampler

FINAL_NUMBER = re.compile(r"#### (-?\d+)")
STEP_LINE = re.compile(r"\d+ [-+*/] \d+ = \d+ \(left: ([\d ]+)\)")
ANSWER_LINE = re.compile(r"Answer: ([\d+\-*/() ]+) = 24(?!\d)")
VALUES = np.array([20, 1, 0.001])  # sure, likely, impossible
VALUE_SAMPLES = 3
PROGRAM_SECONDS = 0.5
WIDER_FACT_DOCUMENTS = {500: 50, 1000: 50, 2000: 100}


def pass_at_k(n: int, right: int, k: int) -> float:
    """Chance that k of n samples, drawn without replacement, hold a right one."""
    if n - right < k:
        return 1.0
    return float(1 - np.prod(1 - k / np.arange(n - right + 1, n + 1)))


def pass_curve(right: list[int], n: int, ks) -> dict[str, float]:
    return {f"pass@{k}": float(np.mean([pass_at_k(n, r, k) for r in right])) for k in ks if k <= n}


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def mean_by(values, keys) -> dict[str, float]:
    groups = collections.defaultdict(list)
    for value, key in zip(values, keys):
        groups[str(key)].append(value)
    return {key: float(np.mean(group)) for key, group in sorted(groups.items())}


# Word problems: one sample against the vote of many.


def final_number(text: str) -> str | None:
    found = FINAL_NUMBER.search(text)
    return found.group(1) if found else None


def vote_share(votes: list, right: str) -> float:
    """1 if `right` has the most votes; a tie counts as its share."""
    counts = collections.Counter(vote for vote in votes if vote is not None)
    if not counts:
        return 0.0
    winners = [vote for vote, count in counts.items() if count == max(counts.values())]
    return (right in winners) / len(winners)


def vote_at_k(votes: list, right: str, k: int, rng: random.Random, draws: int = 20) -> float:
    if k == len(votes):
        return vote_share(votes, right)
    return float(np.mean([vote_share(rng.sample(votes, k), right) for _ in range(draws)]))


def evaluate_words(sampler: Sampler, items_folder: Path, samples: int, temperature: float) -> dict:
    items = read_lines(items_folder / "words.jsonl")
    shots = (items_folder / "words_fewshot.txt").read_text()
    prompts = [shots + words.question_text(item["question"]) for item in items]
    right = [final_number(item["answer"]) for item in items]
    ask = partial(sampler.sample, prompts, most=300, stops=("\n\n", "\nQuestion"))
    greedy = [final_number(texts[0]) == r for texts, r in zip(ask(samples=1, temperature=0), right)]
    texts = ask(samples=samples, temperature=temperature)
    votes = [[final_number(text) for text in own] for own in texts]
    single = [float(np.mean([vote == r for vote in own])) for own, r in zip(votes, right)]
    rng = random.Random(0)
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= samples]
    by_k = {k: [vote_at_k(own, r, k, rng) for own, r in zip(votes, right)] for k in ks}
    return {
        "problems": len(items),
        "samples": samples,
        "temperature": temperature,
        "greedy": float(np.mean(greedy)),
        "single": float(np.mean(single)),
        **{f"maj@{k}": float(np.mean(values)) for k, values in by_k.items()},
        "no_number": float(np.mean([vote is None for own in votes for vote in own])),
        "single_by_level": mean_by(single, [item["level"] for item in items]),
        "single_by_steps": mean_by(single, [item["steps"] for item in items]),
        "vote_by_level": mean_by(by_k[ks[-1]], [item["level"] for item in items]),
        "mean_steps": float(np.mean([item["steps"] for item in items])),
        "example": texts[0][0],
    }


# Functions: pass@k of programs that are run.


def program_passes(program: str) -> bool:
    def out_of_time(*_):
        raise TimeoutError

    signal.signal(signal.SIGALRM, out_of_time)
    signal.setitimer(signal.ITIMER_REAL, PROGRAM_SECONDS)
    try:
        exec(program, {})
        return True
    except BaseException:
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def evaluate_functions(sampler: Sampler, items_folder: Path, samples: int, temperature: float) -> dict:
    items = read_lines(items_folder / "functions.jsonl")
    texts = sampler.sample([item["prompt"] for item in items], samples, temperature, most=120, stops=("\ndef",))

    def program(item, completion):
        return f"{item['prompt']}{completion}\n{item['test']}\ncheck({item['entry_point']})\n"

    programs = [[program(item, text) for text in own] for item, own in zip(items, texts)]
    distinct = sorted({one for own in programs for one in own})
    with multiprocessing.get_context("spawn").Pool() as pool:
        passed = dict(zip(distinct, pool.map(program_passes, distinct, chunksize=64)))
    right = [sum(passed[one] for one in own) for own in programs]
    curves = {}
    for level in sorted({item["level"] for item in items}):
        own = [r for r, item in zip(right, items) if item["level"] == level]
        curves[str(level)] = pass_curve(own, samples, (1, 64))
    return {
        "problems": len(items),
        "samples": samples,
        "temperature": temperature,
        **pass_curve(right, samples, (1, 2, 4, 8, 16, 32, 64, 100)),
        "by_level": curves,
        "distinct_programs": len(distinct),
        "example": texts[0][0],
    }


# Make 24: chains, verdicts, and tree of thoughts.


def solves(puzzle: make24.State, text: str) -> bool:
    found = ANSWER_LINE.search(text)
    if not found or sorted(map(int, re.findall(r"\d+", found.group(1)))) != sorted(puzzle):
        return False
    try:
        return abs(eval(found.group(1)) - 24) < 1e-6  # digits, operators and brackets only
    except (SyntaxError, ZeroDivisionError, TypeError):
        return False


class Make24:
    def __init__(self, sampler: Sampler, items_folder: Path, temperature: float):
        self.sampler, self.temperature = sampler, temperature
        rows = (items_folder / "make24.csv").read_text().splitlines()[1:]
        self.puzzles = [tuple(map(int, row.split(",")[1].split())) for row in rows]
        self.chain_shots = (items_folder / "make24_chain.txt").read_text()
        self.propose_shots = (items_folder / "make24_propose.txt").read_text()
        self.value_shots = (items_folder / "make24_value.txt").read_text()

    def chains(self, samples: int, temperature: float) -> dict:
        prompts = [self.chain_shots + make24.chain_question(puzzle) for puzzle in self.puzzles]
        texts = self.sampler.sample(prompts, samples, temperature, most=120, stops=("\nInput",))
        right = [sum(solves(p, text) for text in own) for p, own in zip(self.puzzles, texts)]
        curve = pass_curve(right, samples, (1, 2, 5, 10, 25, 50, 100))
        return {"puzzles": len(self.puzzles), "samples": samples, "temperature": temperature, **curve}

    def verdicts(self, states: list[make24.State], temperature: float) -> np.ndarray:
        prompts = [self.value_shots + make24.value_question(state) for state in states]
        return self.sampler.word_probabilities(prompts, make24.VERDICTS, temperature).numpy()

    def verdict_accuracy(self) -> dict:
        """Most likely verdict against the truth, on states one to three steps into the held-out puzzles."""
        rng = random.Random(0)
        states = {(24,)} | {(n,) for n in range(100)}
        for puzzle in self.puzzles:
            three = rng.choice(make24.moves(puzzle)).left
            states |= {three, rng.choice(make24.moves(three)).left}
        states = sorted(states)
        said = [make24.VERDICTS[i] for i in self.verdicts(states, 1.0).argmax(1)]
        same = [verdict == make24.verdict(state) for verdict, state in zip(said, states)]
        return {"states": len(states), "right_by_numbers_left": mean_by(same, map(len, states))}

    def next_lines(self, beam: list, how: str, seen: set):
        """Candidate continuations of (puzzle, lines, left): by one list, or by 8 sampled lines."""
        if how == "propose":
            prompts = [self.propose_shots + make24.propose_question(left) for _, _, left in beam]
            texts = self.sampler.sample(prompts, 1, self.temperature, most=260, stops=("\n\n", "\nInput"))
            lines = [own[0].splitlines() for own in texts]
        else:
            prompts = [self.chain_prompt(i, taken) for i, taken, _ in beam]
            lines = self.sampler.sample(prompts, 8, self.temperature, most=24, stops=("\n",))
        for (i, taken, left), own in zip(beam, lines):
            for line in dict.fromkeys(own):
                found = STEP_LINE.fullmatch(line)
                if not found:
                    continue
                after = tuple(sorted(map(int, found.group(1).split())))
                if len(after) == len(left) - 1 and (i, *taken, line) not in seen:
                    seen.add((i, *taken, line))
                    yield i, (*taken, line), after

    def chain_prompt(self, i: int, taken: tuple[str, ...]) -> str:
        return self.chain_shots + make24.chain_question(self.puzzles[i]) + "".join(f"{line}\n" for line in taken)

    def values_of(self, states: list[make24.State], rng: np.random.Generator) -> dict:
        """The sum of three sampled verdicts' values for each state."""
        if not states:
            return {}
        chances = self.verdicts(states, self.temperature)
        chances = chances / chances.sum(1, keepdims=True)
        return {
            state: float(VALUES[rng.choice(3, VALUE_SAMPLES, p=chance / chance.sum())].sum())
            for state, chance in zip(states, chances.astype(float))
        }

    def tree_of_thoughts(self, how: str, breadth: int, informed: bool = True) -> dict:
        """Three levels of steps, the best `breadth` kept by value; then the answer line, greedily."""
        rng = np.random.default_rng(0)
        torch.manual_seed(0)
        beam = [(i, (), puzzle) for i, puzzle in enumerate(self.puzzles)]
        values: dict = {}
        seen: set = set()
        for _ in range(3):
            candidates = list(self.next_lines(beam, how, seen))
            unknown = sorted({left for _, _, left in candidates} - values.keys())
            values |= self.values_of(unknown, rng) if informed else {left: rng.random() for left in unknown}
            ranked = sorted(candidates, key=lambda c: (c[0], -values[c[2]]))
            kept = collections.Counter()
            beam = []
            for candidate in ranked:
                kept[candidate[0]] += 1
                if kept[candidate[0]] <= breadth:
                    beam.append(candidate)
        prompts = [self.chain_prompt(i, taken) for i, taken, _ in beam]
        texts = self.sampler.sample(prompts, 1, 0, most=48, stops=("\nInput",)) if beam else []
        solved = {i for (i, _, _), own in zip(beam, texts) if solves(self.puzzles[i], own[0])}
        return {
            "solved": len(solved) / len(self.puzzles),
            "breadth": breadth,
            "values": "model" if informed else "random",
            "states_valued_a_puzzle": len(values) / len(self.puzzles),
        }


def evaluate_make24(sampler: Sampler, items_folder: Path, samples: int, temperature: float) -> dict:
    task = Make24(sampler, items_folder, temperature)
    return {
        "greedy_chain": task.chains(1, 0)["pass@1"],
        "chains": task.chains(samples, temperature),
        "verdicts": task.verdict_accuracy(),
        "propose": [task.tree_of_thoughts("propose", b, v) for b, v in ((1, True), (5, True), (5, False))],
        "sample": [task.tree_of_thoughts("sample", b, v) for b, v in ((1, True), (5, True), (5, False))],
    }


# Facts: questions about long documents.


def answer_rates(sampler: Sampler, documents: list[dict], temperature: float) -> dict:
    asked = [(document, question) for document in documents for question in document["questions"]]
    prompts = [d["document"] + facts.question_text(q["question"]) for d, q in asked]
    texts = sampler.sample(prompts, 1, temperature, most=8, stops=("\n",), rows=64)
    right = [own[0].strip() == q["answer"] for own, (_, q) in zip(texts, asked)]
    lengths = [document["length"] for document, _ in asked]
    return {
        "temperature": temperature,
        "right_by_length": mean_by(right, lengths),
        "questions_by_length": dict(collections.Counter(map(str, lengths))),
        "right_by_depth_quarter": mean_by(right, [int(4 * q["depth"]) for _, q in asked]),
    }


def evaluate_facts(sampler: Sampler, items_folder: Path, temperature: float) -> dict:
    items = read_lines(items_folder / "facts.jsonl")
    wider = make_items.fact_items(random.Random("wider"), sampler.tokenizer, WIDER_FACT_DOCUMENTS)
    return {
        "items_greedy": answer_rates(sampler, items, 0),
        "items_sampled": answer_rates(sampler, items, temperature),
        "wider_greedy": answer_rates(sampler, wider, 0),
        "wider_sampled": answer_rates(sampler, wider, temperature),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--items", type=Path, required=True, help="folder written by make_items.py")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--samples", type=int, default=100, help="for functions and chains")
    parser.add_argument("--votes", type=int, default=64, help="for word problems")
    arguments = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    sampler = Sampler(llama.load(arguments.model), tokenizer)
    temperature = arguments.temperature
    parts = {
        "words": lambda: evaluate_words(sampler, arguments.items, arguments.votes, temperature),
        "facts": lambda: evaluate_facts(sampler, arguments.items, temperature),
        "make24": lambda: evaluate_make24(sampler, arguments.items, arguments.samples, temperature),
        "functions": lambda: evaluate_functions(sampler, arguments.items, arguments.samples, temperature),
    }
    numbers = {}
    for name, measure in parts.items():
        begun = time.time()
        numbers[name] = measure()
        numbers[name]["seconds"] = round(time.time() - begun, 1)
        print(name, json.dumps(numbers[name]), flush=True)
        arguments.out.write_text(json.dumps(numbers, indent=1) + "\n")


if __name__ == "__main__":
    main()
