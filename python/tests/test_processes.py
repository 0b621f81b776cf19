"""What an engine does to its process: Ctrl-C, fork and spawn, the interpreter's end, memory and threads over many
calls."""

import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import offshoot
from offshoot import LLM, SamplingParams


def python(code, **more):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, **more)


SETUP = """
import os, sys, signal, threading, time, multiprocessing
# A shell that starts jobs in the background has them ignore Ctrl-C, which Python then leaves so.
signal.signal(signal.SIGINT, signal.default_int_handler)
from offshoot import LLM, SamplingParams, Interrupted, demo_model
"""


def test_ctrl_c_ends_a_generation_with_what_is_finished():
    ran = python(SETUP + textwrap.dedent("""
        llm = LLM(demo_model(), device="cpu", kv_memory=256)
        short = SamplingParams(max_tokens=1)
        endless = SamplingParams(n=8, max_tokens=3000, ignore_eos=True)
        threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            llm.generate(["Question: a", "Question: b"], [short, endless])
        except Interrupted as stopped:
            first, second = stopped.outputs
            assert first.finished and not second.finished
            assert {output.finish_reason for output in second.outputs} <= {"abort"}
            print("ended", len(first.outputs))
        assert llm.generate("Question: c", short)[0].finished, "the engine goes on"
    """))
    assert ran.stdout.strip() == "ended 1", ran.stderr
    assert ran.returncode == 0, ran.stderr


def test_ctrl_c_ends_a_table_with_what_had_begun():
    ran = python(SETUP + textwrap.dedent("""
        llm = LLM(demo_model(), device="cpu", kv_memory=256)
        short = SamplingParams(max_tokens=1)
        endless = SamplingParams(n=8, max_tokens=3000, ignore_eos=True)
        threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            llm.generate_table(["Question: a", "Question: b"], [short, endless])
        except Interrupted as stopped:
            rows = stopped.table.to_pylist()
            assert [row["prompt"] for row in rows] == [0] + [1] * 8
            assert rows[0]["finish_reason"] == "length", rows[0]
            assert {row["finish_reason"] for row in rows[1:]} == {"abort"}
            print("ended", stopped)
        assert llm.generate_table("Question: c", short).num_rows == 1, "the engine goes on"
    """))
    assert ran.stdout.strip() == "ended 9 samples had begun: see this exception's `table`", ran.stderr
    assert ran.returncode == 0, ran.stderr


def test_ctrl_c_ends_a_search_with_the_outcomes_that_are_finished():
    ran = python(SETUP + textwrap.dedent("""
        import offshoot
        llm = LLM(demo_model(), device="cpu", kv_memory=256)

        def score(text, index):
            if index == 1:
                time.sleep(0.05)
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.5)
            return len(text)

        prompts = ["Question: a", "Question: b"]
        offshoot.best_of_n(llm, prompts[0], 2, score=len, sampling_params=SamplingParams(max_tokens=3))
        try:
            offshoot.best_of_n(llm, prompts, 2, score=score, sampling_params=SamplingParams(max_tokens=3))
        except Interrupted as stopped:
            first, second = stopped.outputs
            assert len(first.samples) == 2 and second is None
            print(stopped)
    """))
    assert ran.stdout.startswith("1 of 2 prompts were finished"), ran.stderr


def test_the_interpreter_ends_while_samples_run():
    ran = python(SETUP + """
llm = LLM(demo_model(), device="cpu", kv_memory=64)
stream = llm.stream("Question: a", SamplingParams(n=8, max_tokens=3000, ignore_eos=True))
next(stream)
""")
    assert ran.returncode == 0, ran.stderr


def test_a_forked_child_is_refused_and_ends():
    ran = python(SETUP + """
llm = LLM(demo_model(), device="cpu", kv_memory=64)
child = os.fork()
if child == 0:
    try:
        llm.generate("Question: a", SamplingParams(max_tokens=1))
    except RuntimeError as said:
        assert "forked" in str(said), said
        try:
            LLM(demo_model(), device="cpu", kv_memory=64)
        except RuntimeError as said:
            del llm
            sys.exit(7)
    os._exit(1)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
llm.generate("Question: a", SamplingParams(max_tokens=1))
print(code)
""")
    assert ran.stdout.strip() == "7", ran.stderr
    assert ran.returncode == 0, ran.stderr


def test_spawned_workers_have_engines_of_their_own(tmp_path):
    script = tmp_path / "spawned.py"
    script.write_text(textwrap.dedent("""
        import multiprocessing
        from offshoot import LLM, SamplingParams, demo_model

        def work(seed):
            with LLM(demo_model(), device="cpu", kv_memory=64, threads=1) as llm:
                return llm.generate("Question: a", SamplingParams(max_tokens=8, seed=seed))[0].outputs[0].text

        if __name__ == "__main__":
            with LLM(demo_model(), device="cpu", kv_memory=64) as llm:
                own = llm.generate("Question: a", SamplingParams(max_tokens=8, seed=1))[0].outputs[0].text
                with multiprocessing.get_context("spawn").Pool(2) as pool:
                    assert pool.map(work, [1, 1]) == [own, own]
            print("same")
    """))
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert ran.stdout.strip() == "same", ran.stderr


def held():
    status = pathlib.Path("/proc/self/status").read_text()
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    return int(fields["VmRSS"].split()[0]) / 1024, int(fields["Threads"]), len(os.listdir("/proc/self/fd"))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_nothing_grows_over_many_calls(question):
    calls = int(os.environ.get("OFFSHOOT_CALLS", "600"))
    # So few pages that all of them are resident soon.
    with LLM(offshoot.demo_model(), device="cpu", kv_memory=16) as llm:
        many_calls(llm, question, calls)


def many_calls(llm, question, calls):
    def some(count):
        for number in range(count):
            llm.generate(question, SamplingParams(max_tokens=2, seed=number))
            if number % 10 == 0:
                stream = llm.stream(question, SamplingParams(n=2, max_tokens=200, ignore_eos=True))
                next(stream)
                del stream
                tree = llm.tree(question, seed=number)
                tree.extend(tree.fork(tree.root, 2), SamplingParams(max_tokens=2))
                del tree

    some(calls // 2)
    before = held()
    some(calls)
    after = held()
    assert after[1] <= before[1], "threads"
    assert after[2] <= before[2], "files"
    # A branch or a generation left behind by each call would hold more than 20 KiB.
    assert after[0] - before[0] < max(8, calls * 20 / 1024), (
        f"MiB resident: {before[0]:.1f} before, {after[0]:.1f} after {calls} calls")
    # What is held is that of the engine's last turn.
    deadline = time.monotonic() + 10
    while llm.metrics()["branches"] and time.monotonic() < deadline:
        time.sleep(0.01)
    assert llm.metrics()["branches"] == 0


def test_the_command_is_carried():
    ran = subprocess.run([sys.executable, "-m", "offshoot", "--version"], capture_output=True, text=True, timeout=60)
    assert ran.stdout.startswith("offshoot "), ran.stderr
