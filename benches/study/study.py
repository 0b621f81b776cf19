"""What scorers bring the bundled model at equal numbers of generated tokens: python3 study.py OFFSHOOT FOLDER

Runs every method on the word problems, functions and make-24 puzzles of tasks/ with as many samples each, and writes
FOLDER/study.jsonl, a line a run, and FOLDER/table.md. A run that is there already is not repeated. Tokens are those
that the generator has sampled for an item, thrown away ones included; the scorer's are not among them. The last column
compares with the plain method of the same task and samples: the difference over the same items, where a tie counts as
the answer that was chosen, and its 95 % interval by 10,000 draws of items with replacement.
"""

import argparse
import json
import random
import subprocess
from pathlib import Path

TASKS = Path(__file__).resolve().parents[2] / "tasks"
REWARD = TASKS / "models" / "reward"
DRAWS = 10_000


def search(name, samples, scorer, **more):
    return {name: {"samples": samples, "scorer": scorer, "delimiter": "\n", **more}}


def stepwise(samples, by):
    """The searches by steps. `by`: how their last solutions choose."""
    width = {"expansions": 4 if samples >= 16 else 2, "by": by}
    return {
        "beam by likelihood": search("step_beam", samples, "mean_logprob", **width),
        "beam by reward": search("step_beam", samples, "reward", **width),
        "dvts by likelihood": search("dvts", samples, "mean_logprob", **width),
        "dvts by reward": search("dvts", samples, "reward", **width),
        "particle filtering by reward": search("particle_filtering", samples, "reward", by=by),
        "particle Gibbs by reward": search("particle_gibbs", samples, "reward", by=by),
        "mcts by likelihood": search("mcts", samples, "mean_logprob", parallel=4, **width),
        "mcts by reward": search("mcts", samples, "reward", parallel=4, **width),
    }


def sampled(samples):
    return {
        "best by likelihood": {"best_of_n": {"samples": samples, "by": "mean_logprob"}},
        "best by reward": {"best_of_n": {"samples": samples, "by": "reward"}},
    }


def voted(samples):
    return {
        "vote": {"self_consistency": {"samples": samples}},
        "vote weighted by reward": {"self_consistency": {"samples": samples, "weigh_by": "reward"}},
        **sampled(samples),
    }


#: By task file: the plain method, and all methods by the number of samples.
STUDY = {
    "words-vote": ("vote", lambda samples: {**voted(samples), **stepwise(samples, "weighted_vote")}),
    "functions": ("best by likelihood", lambda samples: {**sampled(samples), **stepwise(samples, "best")}),
    "make24-chain": ("vote", lambda samples: {**voted(samples), **stepwise(samples, "weighted_vote")}),
}
#: Trees of thoughts have their own number of tokens: one row each.
TREES = {
    "make24-tot": {
        "tree of thoughts by its own verdicts": [],
        "tree of thoughts by reward": ["method.tree_of_thought.evaluate=reward"],
    }
}


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("offshoot", help="the command")
    parser.add_argument("folder", type=Path, help="for results")
    parser.add_argument("--scorer", type=Path, default=REWARD, help="folder of the reward model")
    parser.add_argument("--tasks", default="words-vote,functions,make24-chain,make24-tot")
    parser.add_argument("--samples", default="4,16", help="samples of an item, by run")
    parser.add_argument("--methods", default="", help="only methods whose names have this text")
    parser.add_argument("--limit", type=int, help="only the first items of each task")
    parser.add_argument("--only-there", action="store_true", help="run nothing: only the table of what is there")
    parser.add_argument("--option", action="append", default=[], help="a further option of `offshoot run`")
    return parser.parse_args()


class Study:
    def __init__(self, arguments):
        self.arguments = arguments
        self.lines = []

    def run(self, task, name, samples, changes):
        """Runs a method if its results are not there yet, and keeps its line."""
        given = self.arguments
        words = [task, name.replace(" ", "-"), *([f"{samples}"] if samples else [])]
        out = given.folder / "runs" / "-".join(words)
        if not (out / "summary.json").exists():
            if given.only_there:
                return
            command = [given.offshoot, "run", str(TASKS / f"{task}.json"), "--out", str(out), *given.option]
            if "reward" in name:
                command += ["--scorer", str(given.scorer)]
            if given.limit:
                command += ["--limit", str(given.limit)]
            for change in changes:
                command += ["--set", change]
            print(task, name, samples, flush=True)
            ran = subprocess.run(command, capture_output=True, text=True)
            if ran.returncode:
                last = ran.stderr.strip().splitlines()[-1:]
                self.lines.append({"task": task, "method": name, "samples": samples, "error": " ".join(last)})
                print(f"  failed: {' '.join(last)}", flush=True)
                return
        self.lines.append({"task": task, "method": name, "samples": samples, **figures(out)})

    def all(self):
        given = self.arguments
        for task in given.tasks.split(","):
            if task in TREES:
                for name, changes in TREES[task].items():
                    if given.methods in name:
                        self.run(task, name, None, changes)
                continue
            for samples in map(int, given.samples.split(",")):
                for name, method in STUDY[task][1](samples).items():
                    if given.methods in name:
                        self.run(task, name, samples, [f"method={json.dumps(method)}"])


def figures(out):
    """What a run's files say."""
    summary = json.loads((out / "summary.json").read_text())
    items = [json.loads(line) for line in (out / "items.jsonl").read_text().splitlines()]
    tokens = sum(item["sampled_tokens"] + item["search_tokens"] for item in items) / len(items)
    single = summary.get("single") or {}
    return {
        "items": summary["items"],
        "tokens": round(tokens, 1),
        "accuracy": summary["accuracy"],
        "single": single.get("value"),
        "seconds": round(summary["seconds"], 1),
        "scorer": {key: value for key, value in summary.items() if key.startswith("scorer")},
        "right": {item["id"]: bool(item["correct"]) for item in items},
    }


def difference(right, plain):
    """The mean difference over common items and its 95 % interval."""
    each = [right[item] - plain[item] for item in sorted(right) if item in plain]
    if not each:
        return None
    draws = random.Random(51)
    means = sorted(sum(draws.choices(each, k=len(each))) / len(each) for _ in range(DRAWS))
    return sum(each) / len(each), means[int(0.025 * DRAWS)], means[int(0.975 * DRAWS)]


def percent(value):
    return f"{100 * value:.1f}"


def row(line, plain):
    if "error" in line:
        return f"| {line['method']} | {line['samples'] or ''} | | failed: {line['error']} | |"
    accuracy = line["accuracy"]
    told = f"{percent(accuracy['value'])} ({percent(accuracy['low'])} to {percent(accuracy['high'])})"
    apart = difference(line["right"], plain["right"]) if plain and plain is not line else None
    versus = f"{100 * apart[0]:+.1f} ({100 * apart[1]:+.1f} to {100 * apart[2]:+.1f})" if apart else ""
    return f"| {line['method']} | {line['samples'] or ''} | {line['tokens']:.0f} | {told} | {versus} |"


def table(lines):
    text = ""
    for task in dict.fromkeys(line["task"] for line in lines):
        own = [line for line in lines if line["task"] == task]
        name = STUDY[task][0] if task in STUDY else None
        text += f"## {task}\n\n| method | samples | tokens an item | right, % | beside {name or 'it'}, points |\n"
        text += "|---|---|---|---|---|\n"
        for line in own:
            same = (other for other in own if other["method"] == name and other["samples"] == line["samples"])
            plain = next((other for other in same if "right" in other), None)
            text += row(line, plain) + "\n"
        text += "\n"
    return text


def main():
    arguments = parse_arguments()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    study = Study(arguments)
    study.all()
    with open(arguments.folder / "study.jsonl", "w") as file:
        for line in study.lines:
            file.write(json.dumps(line) + "\n")
    text = table(study.lines)
    (arguments.folder / "table.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
