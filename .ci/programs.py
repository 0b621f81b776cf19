"""The programs of tests that `cargo test --no-run --message-format json` has built, as jobs for jobs.py.

    programs.py MESSAGES NAME...          a line for each program, those of these names first, in this order
    programs.py --path NAME MESSAGES      the path of one

Each runs where `cargo test` would run it: in the folder of its package. Those of ON_ALL_CORES use all.
"""

import json
import os
import shlex
import sys

# The threads of an engine and of its ops must meet.
ON_ALL_CORES = ["engine-engine", "cpu-arithmetic"]


def programs(messages):
    """By name: the program and the folder of its package. Unit tests of a library are `lib-NAME`; a suite of a crate
    below crates/ has the crate's name before its own."""
    found = {}
    for line in open(messages):
        message = json.loads(line)
        if message.get("reason") != "compiler-artifact" or not message.get("executable"):
            continue
        if not message["profile"]["test"]:
            continue
        kind, name = message["target"]["kind"][0], message["target"]["name"]
        folder = os.path.dirname(message["manifest_path"])
        if kind != "test":
            name = f"{kind}-{name}"
        elif os.path.basename(os.path.dirname(folder)) == "crates":
            name = f"{os.path.basename(folder)}-{name}"
        found[name] = (message["executable"], folder)
    return found


def main():
    if sys.argv[1] == "--path":
        print(programs(sys.argv[3])[sys.argv[2]][0])
        return
    found, first = programs(sys.argv[1]), sys.argv[2:]
    for name in sorted(found, key=lambda name: (first.index(name) if name in first else len(first), name)):
        program, folder = found[name]
        cores = f"taskset -c 0-{os.cpu_count() - 1} " if name in ON_ALL_CORES else ""
        program, folder = shlex.quote(program), shlex.quote(folder)
        print(f"{name}\tcd {folder} && CARGO_MANIFEST_DIR={folder} {cores}{program}")


if __name__ == "__main__":
    main()
