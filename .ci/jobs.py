"""Runs commands side by side, in the order given: as many at once as there are cores, each on one. Threads of a program
that wait for each other would wait for other programs' as well. A command that is to use all cores asks for them
(`taskset`).

    jobs.py FOLDER [WAITING...] < JOBS

JOBS has a line for each command: its name, a tab, and what bash is to run. Those whose names are WAITING mostly wait:
they run one after another beside the others. Each command's output goes to FOLDER/NAME.log; a summary comes when it
ends, all of its output if it fails. A command that has not ended after MOST_SECONDS is stopped and has failed, so that
a test that waits for ever is named, and others still run. Exits with 1 if one failed.
"""

import os
import pathlib
import queue
import signal
import subprocess
import sys
import threading
import time

# Three times what the longest takes on a slow machine.
MOST_SECONDS = 1500


def stop(group, stopped):
    """Stops a command with the processes that it has started, which hold its output open."""
    # Before it ends, as its end is what the summary waits for.
    stopped.set()
    os.killpg(group, signal.SIGKILL)


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    computing, waiting = queue.SimpleQueue(), queue.SimpleQueue()
    for line in sys.stdin:
        if line.strip():
            name, command = line.rstrip("\n").split("\t", 1)
            (waiting if name in sys.argv[2:] else computing).put((name, command))
    began, printing, failed = time.monotonic(), threading.Lock(), []

    def work(jobs, cores):
        while True:
            try:
                name, command = jobs.get_nowait()
            except queue.Empty:
                return
            log, start = folder / f"{name}.log", time.monotonic()
            with open(log, "wb") as output:
                process = subprocess.Popen(["bash", "-euo", "pipefail", "-c", command], stdin=subprocess.DEVNULL,
                                           stdout=output, stderr=subprocess.STDOUT,
                                           preexec_fn=lambda: os.sched_setaffinity(0, cores),
                                           start_new_session=True)
                stopped = threading.Event()
                limit = threading.Timer(MOST_SECONDS, stop, (process.pid, stopped))
                limit.start()
                # Also tells what the command and all that it waited for used of the processor.
                _, status, used = os.wait4(process.pid, 0)
                limit.cancel()
            code = process.returncode = os.waitstatus_to_exitcode(status)
            text, now = log.read_text(errors="replace"), time.monotonic()
            with printing:
                verdict = "passed" if code == 0 else f"FAILED with {code}"
                verdict += f", stopped: it has not ended in {MOST_SECONDS} s" if stopped.is_set() and code != 0 else ""
                print(f"-- {name}: {verdict}, {now - start:.0f} s ({used.ru_utime + used.ru_stime:.0f} s of a core), "
                      f"from {start - began:.0f} s on", flush=True)
                if code != 0:
                    failed.append(name)
                    print(text, flush=True)
                else:
                    results = [line for line in text.splitlines() if line.startswith("test result:")]
                    print("\n".join(results or text.splitlines()[-1:]), flush=True)

    cores = os.sched_getaffinity(0)
    workers = [threading.Thread(target=work, args=(computing, {core})) for core in sorted(cores)]
    workers.append(threading.Thread(target=work, args=(waiting, cores)))
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if failed:
        print("failed:", ", ".join(failed), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
