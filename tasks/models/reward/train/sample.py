"""Samples answers of the demo model to questions: python sample.py --out DIR --seconds 90

With PYTHONPATH=../../demo/train, as all scripts of this folder.

Writes heldout.jsonl first, then train.jsonl until the time is over: a question a
line, with its answers and whether each is right. Held-out questions are those
that the demo's generators keep out of training, without the task files' own.
"""

import argparse
import json
import multiprocessing
import random
import time
from pathlib import Path

import llama
from sampler import Sampler
from tokenizers import Tokenizer

import questions
from questions import DEMO

TEMPERATURE = 0.8


class Sampling:
    def __init__(self, pool, seed: int):
        tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
        self.sampler = Sampler(llama.load(DEMO), tokenizer, seed)
        self.rng, self.pool, self.asked = random.Random(seed), pool, questions.bundled()

    def lines(self, family: str, count: int, samples: int, heldout: bool) -> list[dict]:
        asked = []
        for _ in range(count):
            asked.append(questions.draw(self.rng, family, heldout, self.asked))
            self.asked.add(asked[-1].question)
        how = questions.FAMILIES[family]
        prompts = [one.prompt for one in asked]
        answers = self.sampler.sample(prompts, samples, TEMPERATURE, how.most, how.stops)
        return [
            {"family": family, "question": one.question, "answers": own, "right": questions.right(one, own, self.pool)}
            for one, own in zip(asked, answers)
        ]


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--seconds", type=float, required=True, help="for the training samples; held-out ones come before"
    )
    parser.add_argument("--seed", type=int, default=51)
    parser.add_argument("--questions", type=int, default=512, help="training questions of a family at a time")
    parser.add_argument("--samples", type=int, default=8, help="answers to a training question")
    parser.add_argument("--heldout-questions", type=int, default=200, help="held-out questions of a family")
    parser.add_argument("--heldout-samples", type=int, default=32, help="answers to a held-out question")
    return parser.parse_args()


def write(file, lines: list[dict]) -> None:
    file.write("".join(json.dumps(line) + "\n" for line in lines))
    file.flush()


def main() -> None:
    arguments = parse_arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with multiprocessing.get_context("spawn").Pool() as pool:
        sampling = Sampling(pool, arguments.seed)
        with open(arguments.out / "heldout.jsonl", "w") as file:
            for family in questions.FAMILIES:
                count, samples = arguments.heldout_questions, arguments.heldout_samples
                write(file, sampling.lines(family, count, samples, heldout=True))
        print("held-out answers are there", flush=True)
        begun, drawn = time.time(), 0
        with open(arguments.out / "train.jsonl", "w") as file:
            while time.time() - begun < arguments.seconds:
                for family in questions.FAMILIES:
                    write(file, sampling.lines(family, arguments.questions, arguments.samples, heldout=False))
                drawn += arguments.questions * arguments.samples * len(questions.FAMILIES)
        print(f"{drawn} answers in {time.time() - begun:.0f} s", flush=True)


if __name__ == "__main__":
    main()
