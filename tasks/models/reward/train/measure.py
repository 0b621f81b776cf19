"""Measures the reward model on held-out answers: python measure.py --model DIR --samples DIR --out numbers.json

By line and at the end: the area under the curve (AUC), of all answers and within
questions, and at the end what choosing by value does. Also writes
golden_scores.json: one text's tokens and values, for checking another
implementation.
"""

import argparse
import collections
import json
from pathlib import Path

import evaluate
import llama
import numpy as np
import torch
from rows import KIND_SHIFT, TOKEN_MASK
from tokenizers import Tokenizer

import answers
import reward

ROWS_AT_ONCE = 512
MOST_LINES = 8


def auc(values: np.ndarray, right: np.ndarray) -> float | None:
    """Chance that a right answer has a larger value than a wrong one; a tie counts half. None without both."""
    positive, negative = int(right.sum()), int((~right).sum())
    if not positive or not negative:
        return None
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return float((ranks[right].sum() - positive * (positive + 1) / 2) / (positive * negative))


class Values:
    """Computes the values of texts in float32."""

    def __init__(self, folder: Path):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.model = reward.load(folder).to(self.device).requires_grad_(False)
        torch.set_float32_matmul_precision("highest")

    @torch.no_grad()
    def of_tokens(self, rows: list[np.ndarray]) -> list[np.ndarray]:
        """A value for each token."""
        longest = max(map(len, rows))
        tokens = torch.tensor(np.stack([np.pad(row, (0, longest - len(row))) for row in rows]), device=self.device)
        tables = llama.rotary_tables(self.model.shape, longest, self.device)
        hidden = self.model.hidden_states(tokens, *tables, torch.float32)
        values = llama.linear(hidden, self.model.score)[..., 0].cpu().numpy()
        return [own[: len(row)] for own, row in zip(values, rows)]

    def of_answers(self, wanted: list[answers.Answer]) -> list[np.ndarray]:
        """A value for each line."""
        encoded = answers.encode(self.tokenizer, wanted)
        ends = [np.flatnonzero(row >> KIND_SHIFT >= answers.WRONG) for row in encoded]
        tokens = [(row & TOKEN_MASK).astype(np.int64) for row in encoded]
        order = sorted(range(len(tokens)), key=lambda i: len(tokens[i]))
        values: list[np.ndarray] = [np.empty(0)] * len(tokens)
        for start in range(0, len(order), ROWS_AT_ONCE):
            chunk = order[start : start + ROWS_AT_ONCE]
            for i, own in zip(chunk, self.of_tokens([tokens[i] for i in chunk])):
                values[i] = own[ends[i]]
        return values


def within(values: list[np.ndarray], right: list[np.ndarray]) -> float | None:
    """The mean over questions that have both right and wrong answers."""
    each = [one for one in map(auc, values, right) if one is not None]
    return float(np.mean(each)) if each else None


def rated(values: list[np.ndarray], right: list[np.ndarray]) -> dict:
    """`values`: for each question those of its answers."""
    return {"auc": auc(np.concatenate(values), np.concatenate(right)), "auc_within": within(values, right)}


def at_line(by_question: list, i: int) -> dict:
    """How well the value behind line `i` tells what comes of those answers that have more lines."""
    longer = [[(v[i], r) for v, r in own if len(v) > i + 1] for own in by_question]
    longer = [own for own in longer if own]
    values = [np.array([v for v, _ in own]) for own in longer]
    right = [np.array([r for _, r in own], bool) for own in longer]
    return {"answers": sum(map(len, longer)), **(rated(values, right) if longer else {})}


def first_n(own: list, n: int) -> list[list]:
    return [own[start : start + n] for start in range(0, len(own) - n + 1, n)]


def best_of(by_question: list, n: int) -> dict:
    """One of `n` at random, that of the largest last value, and any."""
    groups = [group for own in by_question for group in first_n([one for one in own if len(one[0])], n)]
    chosen = [max(group, key=lambda one: one[0][-1])[1] for group in groups]
    return {
        "n": n,
        "single": float(np.mean([r for group in groups for _, r in group])),
        "best": float(np.mean(chosen)),
        "any": float(np.mean([any(r for _, r in group) for group in groups])),
    }


def votes(lines: list[dict], by_question: list, n: int) -> dict:
    """Of word problems: the vote of `n`, and that weighted by the probability of being right."""
    plain, weighted = [], []
    for line, own in zip(lines, by_question):
        numbers = [evaluate.final_number(answer) for answer in line["answers"]]
        told = [(number, 1 / (1 + np.exp(-v[-1])), r) for number, (v, r) in zip(numbers, own) if number and len(v)]
        for group in first_n(told, n):
            for into, weigh in ((plain, lambda _: 1.0), (weighted, lambda p: p)):
                sums: dict = collections.defaultdict(float)
                is_right = {}
                for number, p, r in group:
                    sums[number] += weigh(p)
                    is_right[number] = r
                best = [number for number in sums if sums[number] == max(sums.values())]
                into.append(float(np.mean([is_right[number] for number in best])))
    return {"n": n, "vote": float(np.mean(plain)), "weighted": float(np.mean(weighted))}


def measured(lines: list[dict], values: Values) -> dict:
    wanted = [[answers.Answer(line["question"], *one) for one in zip(line["answers"], line["right"])] for line in lines]
    flat = iter(values.of_answers([one for own in wanted for one in own]))
    by_question = [[(next(flat), one.right) for one in own] for own in wanted]
    there = [[(v, r) for v, r in own if len(v)] for own in by_question]
    there = [own for own in there if own]
    last = [np.array([v[-1] for v, _ in own]) for own in there]
    right = [np.array([r for _, r in own], bool) for own in there]
    sizes = [n for n in (4, 16, 32) if all(len(own) >= n for own in by_question)]
    numbers = {
        "questions": len(lines),
        "answers": sum(map(len, wanted)),
        "end": rated(last, right),
        "by_line": {str(i + 1): at_line(there, i) for i in range(MOST_LINES)},
        "best_of": [best_of(by_question, n) for n in sizes],
    }
    if lines[0]["family"] == "words":
        numbers["votes"] = [votes(lines, by_question, n) for n in sizes]
    return numbers


def golden(line: dict, values: Values) -> dict:
    question, answer = line["question"], line["answers"][0]
    (row,) = answers.encode(values.tokenizer, [answers.Answer(question, answer, True)])
    tokens = (row & TOKEN_MASK).astype(np.int64)
    positions = np.flatnonzero(row >> KIND_SHIFT >= answers.WRONG).tolist()
    (own,) = values.of_tokens([tokens])
    scores = [[round(float(own[i]), 6)] for i in positions]
    texts = {"question": question, "answer": answer}
    return {**texts, "prompt": tokens.tolist(), "positions": positions, "scores": scores}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--samples", type=Path, required=True, help="folder written by sample.py")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    values = Values(arguments.model)
    lines = [json.loads(line) for line in (arguments.samples / "heldout.jsonl").read_text().splitlines()]
    families: dict = collections.defaultdict(list)
    for line in lines:
        families[line["family"]].append(line)
    numbers = {family: measured(own, values) for family, own in families.items()}
    arguments.out.write_text(json.dumps(numbers, indent=1) + "\n")
    (arguments.out.parent / "golden_scores.json").write_text(json.dumps(golden(lines[0], values)) + "\n")
    for family, own in numbers.items():
        print(family, json.dumps(own), flush=True)


if __name__ == "__main__":
    main()
