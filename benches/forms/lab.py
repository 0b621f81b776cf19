"""`offshoot-lab forms`, which says what forms make of texts, as a function."""

import argparse
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def add_options(parser: argparse.ArgumentParser):
    parser.add_argument("--lab", default=str(ROOT / "target/release/offshoot-lab"), help="the program")
    parser.add_argument("--tokenizer", default=str(ROOT / "tasks/models/demo"), help="folder with a tokenizer.json")


def ask(given, lines):
    """The answers of the program to these lines."""
    ran = subprocess.run([given.lab, "forms", "--tokenizer", given.tokenizer], input="\n".join(lines).encode(),
                         stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in ran.stdout.splitlines()]


def verdicts(given, forms):
    """One answer for each `(name, form, texts)`: `error` where the form is refused, else `texts`, what becomes of
    each."""
    return ask(given, (json.dumps({"name": name, "form": form, "texts": texts}) for name, form, texts in forms))
