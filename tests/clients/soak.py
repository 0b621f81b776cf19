"""A soak: benches/load.py at a rate, window after window, and what drifts between the windows.

    soak.py --base-url URL --pid PID [--minutes 30] [--rate 20] [--window 30] [--json FILE]

The server should have a small pool (`--kv-memory 64`): else its pages become resident one after another all the time.
Prints a line per window and, at the end, the last quarter beside the first one after the warm-up window.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
import urllib.request

LOAD = pathlib.Path(__file__).parents[2] / "benches/load.py"
GAUGES = ["offshoot_requests_open", "offshoot_requests_waiting", "offshoot_branches_kept"]


def process(pid):
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.split(":", 1) for line in file if ":" in line)
    return {"rss_mib": int(status["VmRSS"].split()[0]) / 1024, "threads": int(status["Threads"]),
            "files": len(os.listdir(f"/proc/{pid}/fd"))}


def metrics(url):
    with urllib.request.urlopen(url + "/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {gauge: float(values[gauge]) for gauge in GAUGES if gauge in values}


def window(given, number):
    requests = max(1, round(given.rate * given.window))
    ran = subprocess.run(
        [sys.executable, LOAD, "--url", given.base_url, "--rate", str(given.rate), "--json",
         "--requests", str(requests), "--seed", str(number), "--prompt-tokens", "96", "--shared-tokens", "64",
         "--max-tokens", "32", "--choices", "2"], capture_output=True, text=True, check=True)
    seen = json.loads(ran.stdout)
    figures = {"answered": seen["answered"], "errors": sum(seen["errors"].values()),
               "tokens_per_s": seen["tokens_per_s"], "first_token_p99_ms": 1e3 * seen["first_token_s"]["p99"],
               "latency_p50_ms": 1e3 * seen["latency_s"]["p50"], "latency_p99_ms": 1e3 * seen["latency_s"]["p99"]}
    return {**figures, **process(given.pid), **metrics(given.base_url)}


def mean(windows, field):
    return sum(one[field] for one in windows) / len(windows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--pid", type=int, required=True, help="the server's process")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--rate", type=float, default=20, help="requests per second")
    parser.add_argument("--window", type=float, default=30, help="seconds")
    parser.add_argument("--json", help="file for all windows")
    given = parser.parse_args()
    end, windows = time.monotonic() + 60 * given.minutes, []
    while time.monotonic() < end or len(windows) < 3:
        windows.append(window(given, len(windows)))
        print(" ".join(f"{name.removeprefix('offshoot_')} {value:.5g}" for name, value in windows[-1].items()),
              flush=True)
    quarter = max(1, (len(windows) - 1) // 4)
    first, last = windows[1 : 1 + quarter], windows[-quarter:]
    print(f"drift from windows 2 to {1 + quarter} to the last {quarter}:")
    for name in windows[0]:
        one, other = mean(first, name), mean(last, name)
        print(f"  {name:28} {one:12.2f} -> {other:12.2f}  {other - one:+.2f}")
    if given.json:
        with open(given.json, "w") as file:
            json.dump(windows, file, indent=1)


if __name__ == "__main__":
    main()
