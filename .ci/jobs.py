"""Runs commands side by side: as many at once as there are cores, in the order given.

    jobs.py FOLDER < JOBS

JOBS has a line for each command: its name, a tab, and what bash is to run. Each command's output goes to FOLDER/NAME.log; a
summary comes when it ends, all of its output if it fails. Exits with 1 if one failed.
"""

import os
import pathlib
import queue
import subprocess
import sys
import threading
import time


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    jobs = queue.SimpleQueue()
    for line in sys.stdin:
        if line.strip():
            jobs.put(line.rstrip("\n").split("\t", 1))
    began, printing, failed = time.monotonic(), threading.Lock(), []

    def work():
        while True:
            try:
                name, command = jobs.get_nowait()
            except queue.Empty:
                return
            log, start = folder / f"{name}.log", time.monotonic()
            with open(log, "wb") as output:
                end = subprocess.run(["bash", "-euo", "pipefail", "-c", command], stdin=subprocess.DEVNULL, stdout=output,
                                     stderr=subprocess.STDOUT)
            text, now = log.read_text(errors="replace"), time.monotonic()
            with printing:
                verdict = "passed" if end.returncode == 0 else f"FAILED with {end.returncode}"
                print(f"-- {name}: {verdict}, {now - start:.0f} s, from {start - began:.0f} s on", flush=True)
                if end.returncode != 0:
                    failed.append(name)
                    print(text, flush=True)
                else:
                    results = [line for line in text.splitlines() if line.startswith("test result:")]
                    print("\n".join(results or text.splitlines()[-1:]), flush=True)

    workers = [threading.Thread(target=work) for _ in range(os.cpu_count() or 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failed:
        print("failed:", ", ".join(failed), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
