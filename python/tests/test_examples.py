"""The examples run on the bundled model, and what they print is what they promise."""

import pathlib
import re
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
}


@pytest.mark.parametrize("name", PRINTS)
def test_an_example(name):
    pattern, least = PRINTS[name]
    ran = subprocess.run([sys.executable, str(EXAMPLES / name)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    found = re.search(pattern, ran.stdout)
    assert found and float(found[1]) >= least, ran.stdout
