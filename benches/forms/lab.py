"""`offshoot-lab forms`, which says what forms make of texts, as a function."""

import argparse
import json
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def add_options(parser: argparse.ArgumentParser):
    parser.add_argument("--lab", default=str(ROOT / "target/release/offshoot-lab"), help="the program")
    parser.add_argument("--tokenizer", default=str(ROOT / "tasks/models/demo"), help="folder with a tokenizer.json")


def verdicts(given, forms):
    """One answer for each `(name, form, texts)`: `error` where the form is refused, else `texts`, what becomes of each.
    `seconds` and `peak_mb` are those of compiling it and its first mask."""
    lines = "".join(json.dumps({"name": name, "form": form, "texts": texts}) + "\n" for name, form, texts in forms)
    ran = subprocess.run([given.lab, "forms", "--tokenizer", given.tokenizer], input=lines.encode(),
                         stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in ran.stdout.splitlines()]
