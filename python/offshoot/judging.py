"""The judge: runs programs against a problem's tests, each in a sandbox of the operating system."""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Sequence
from typing import Any, overload

from offshoot._facts import Verdict
from offshoot._native import NativeJudge
from offshoot.command import command


@dataclasses.dataclass(slots=True)
class TestVerdict:
    """The verdict on one test of a program; ``message``: why it is not accepted."""

    __test__ = False  # No test of pytest's, whatever its name begins with.

    verdict: Verdict
    message: str | None = None


@dataclasses.dataclass(slots=True)
class Judgement:
    """The verdict on a program: AC (accepted), WA, TLE, MLE, OLE, RE, CE or SANDBOX."""

    verdict: Verdict
    message: str | None
    tests: list[TestVerdict]
    wall_seconds: float
    cpu_seconds: float
    peak_bytes: int

    @property
    def accepted(self) -> bool:
        return self.verdict == "AC"

    def __bool__(self) -> bool:
        return self.accepted


class Judge:
    """A judge to be used often; threads may share it. ``python``: the interpreter of candidates, or the folder of a
    virtual environment. ``withheld``: files that candidates must not read, such as the problems. ``sandboxed=False``
    also judges where the machine cannot isolate candidates: they can then do whatever you can."""

    def __init__(self, *, python: str | os.PathLike[str] | None = None,
                 withheld: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (), sandboxed: bool = True,
                 all_tests: bool = False):
        paths = [withheld] if isinstance(withheld, (str, os.PathLike)) else withheld
        self._native = NativeJudge(command(), python=python, withheld=[os.fspath(path) for path in paths],
                                   sandboxed=sandboxed, all_tests=all_tests)

    @overload
    def judge(  # type: ignore[overload-overlap]
        self, problem: dict[str, Any], programs: str, language: str = ...) -> Judgement: ...
    @overload
    def judge(self, problem: dict[str, Any], programs: Sequence[str], language: str = ...) -> list[Judgement]: ...
    def judge(
        self, problem: dict[str, Any], programs: str | Sequence[str], language: str = "python"
    ) -> Judgement | list[Judgement]:
        """Judges a program, or several at once. ``problem``: a row of a benchmark's file (HumanEval, EvalPlus, MBPP,
        APPS, LiveCodeBench), recognised by its fields. ``language``: python, cpp, or commands as JSON."""
        if not isinstance(problem, dict):
            raise TypeError(f"problem: expected a dict, a row of a benchmark, found {problem!r}")
        if not isinstance(programs, str) and not hasattr(programs, "__iter__"):
            raise TypeError(f"programs: expected a text or a list of texts, found {programs!r}")
        given = [programs] if isinstance(programs, str) else list(programs)
        for program in given:
            if not isinstance(program, str):
                raise TypeError(f"programs: expected texts, found {program!r}")
        judged = self._native.judge(json.dumps(problem), given, language)
        verdicts = [_judgement(json.loads(each)) for each in judged]
        return verdicts[0] if isinstance(programs, str) else verdicts


_shared: Judge | None = None
_sharing = threading.Lock()


@overload
def judge(  # type: ignore[overload-overlap]
    problem: dict[str, Any], programs: str, language: str = ...) -> Judgement: ...
@overload
def judge(problem: dict[str, Any], programs: Sequence[str], language: str = ...) -> list[Judgement]: ...
def judge(
    problem: dict[str, Any], programs: str | Sequence[str], language: str = "python"
) -> Judgement | list[Judgement]:
    """Judges programs on a problem with the process' shared judge; see :class:`Judge`."""
    global _shared
    with _sharing:
        if _shared is None:
            _shared = Judge()
    return _shared.judge(problem, programs, language)


def _judgement(row: dict[str, Any]) -> Judgement:
    def seconds(time: dict[str, int]) -> float:
        return time["secs"] + 1e-9 * time["nanos"]

    tests = [TestVerdict(**test) for test in row["tests"]]
    return Judgement(row["verdict"], row.get("message"), tests, seconds(row["wall"]), seconds(row["cpu"]),
                     row["peak_bytes"])
