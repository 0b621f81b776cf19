"""The examples run on the bundled model, and what they print is what they promise."""

import os
import pathlib
import re
import socket
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "python"

#: What each prints, and a number in it that must be at least so large.
PRINTS = {
    "self_consistency.py": (r"the vote ([0-9.]+)%", 80),
    "best_of_n.py": (r"(\d+) of 4 solved", 1),
    "tree_of_thoughts.py": (r"(\d+) of 8 reach 24", 4),
    "documents.py": (r"(\d+) of \d+ right", 30),
    "tree_rollouts.py": (r"by_entropy: .* ([0-9.]+) times fewer", 2),
}


@pytest.mark.parametrize("name", PRINTS)
def test_an_example(name):
    pattern, least = PRINTS[name]
    ran = subprocess.run([sys.executable, str(EXAMPLES / name)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    found = re.search(pattern, ran.stdout)
    assert found and float(found[1]) >= least, ran.stdout


def test_the_search_over_a_server_says_that_there_is_none():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # Nothing listens there.
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        for address in (nobody, "127.0.0.1:8000", "http://"):
            ran = subprocess.run([sys.executable, str(ROOT / "examples" / "tree_search.py"), "Question: why?"],
                                 env={**os.environ, "OFFSHOOT_SERVER": address}, capture_output=True, text=True)
            assert ran.returncode == 1 and ran.stdout == ""
            (said,) = ran.stderr.splitlines()
            assert said.startswith(f"no server at {address} (") and "offshoot serve --model" in said
