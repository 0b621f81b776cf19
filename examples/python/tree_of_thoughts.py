"""Make 24 by a tree of thoughts whose steps and values are Python's: arithmetic proposes, the model says what is worth
it."""

import itertools
import re

import offshoot

llm = offshoot.LLM(offshoot.demo_model())
judgements = open("tasks/make24_value.txt").read()


def left(path, numbers):
    return re.search(r"left: ([0-9 ]+)\)", path[-1])[1].split() if path else numbers.split()


def search(numbers):
    def propose(path):
        steps = []
        for a, b in itertools.permutations(left(path, numbers), 2):
            rest = left(path, numbers)
            rest.remove(a), rest.remove(b)
            for sign, value in (("+", int(a) + int(b)), ("-", int(a) - int(b)), ("*", int(a) * int(b))):
                if value >= 0:
                    steps.append(f"{a} {sign} {b} = {value} "
                                 f"(left: {' '.join(map(str, sorted([*map(int, rest), value])))})")
        return steps

    def value(path):
        rest = left(path, numbers)
        return float(rest == ["24"]) * 30 if len(rest) == 1 else f"{judgements}{' '.join(rest)}\n"

    return offshoot.tree_of_thoughts(
        llm, f"Input: {numbers}\nSteps:\n", propose=propose, value=value,
        state=lambda path: " ".join(left(path, numbers)),
        words={"sure": 20.0, "likely": 1.0, "impossible": 0.001}, steps=3, breadth=5, seed=1)


puzzles = [line.split(",")[1].strip() for line in open("tasks/make24.csv")][1:9]
found = [search(numbers).best.text for numbers in puzzles]
for numbers, steps in zip(puzzles, found):
    print(numbers, "->", steps.strip().replace("\n", "; "))
print(sum(steps.rstrip().endswith("(left: 24)") for steps in found), "of", len(puzzles), "reach 24")
