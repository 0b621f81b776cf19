"""What the scripts of this folder share: their options, and running every function whose name begins with `check_`.

Exit code 0: all hold; 1: one does not; 77: a package is not installed, and nothing was checked.
"""

import argparse
import sys
import traceback

SKIPPED = 77


def options(more=lambda parser: None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--base-url", default="http://127.0.0.1:8000", help="the server, without /v1")
    parser.add_argument("--model", default="demo", help="the model's name")
    more(parser)
    return parser.parse_args()


def skip_without(*packages):
    for package in packages:
        try:
            __import__(package)
        except ImportError as error:
            print(f"skipped: {error}")
            sys.exit(SKIPPED)


def run(module, *arguments):
    """Calls every check of `module`, all of them also after a failure."""
    checks = [(name, check) for name, check in vars(module).items() if name.startswith("check_")]
    failed = 0
    for name, check in checks:
        try:
            check(*arguments)
            print(f"ok      {name}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {name}\n{traceback.format_exc()}", flush=True)
    print(f"{len(checks) - failed} of {len(checks)} checks hold")
    sys.exit(1 if failed else 0)
