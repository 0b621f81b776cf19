"""``judge``: verdicts on a dataset's programs, over the CPUs of the cluster. How a program is judged is left to
``offshoot.judging``."""

from __future__ import annotations

import functools
import json
from typing import Any

import pyarrow as pa
import ray.data

from offshoot.judging import Judge, Judgement
from offshoot.ray.blocks import with_column, without_nulls

_DETAILS = pa.struct([
    ("message", pa.string()), ("tests", pa.string()), ("wall_seconds", pa.float64()), ("cpu_seconds", pa.float64()),
    ("peak_bytes", pa.int64()),
])


def judge(
    dataset: ray.data.Dataset,
    problem: str,
    program: str,
    *,
    language: str = "python",
    verdict: str = "verdict",
    details: str = "judgement",
    batch_size: int = 16,
    num_cpus: float = 1,
    concurrency: int | None = None,
    withheld: tuple[str, ...] = (),
    sandboxed: bool = True,
    all_tests: bool = False,
    **map_kwargs: Any,
) -> ray.data.Dataset:
    """Judges each row's program on the row's problem, on all CPUs of the cluster unless ``concurrency`` limits the
    tasks.

    ``problem``: the column of a benchmark's row, as a dict or as JSON text, which keeps fields without a value;
    ``program``: the column of a program, or of a list of them, such as the samples of one prompt. The column
    ``verdict`` gets AC, WA, TLE and so on; ``details`` the message, the tests as JSON, times and memory; both lists for
    lists. ``withheld``, ``sandboxed`` and ``all_tests`` are ``offshoot.Judge``'s.
    """
    options = (tuple(withheld), bool(sandboxed), bool(all_tests))
    return dataset.map_batches(
        functools.partial(_judged, problem=problem, program=program, language=language, verdict=verdict,
                          details=details, options=options),
        batch_size=batch_size, batch_format="pyarrow", num_cpus=num_cpus, concurrency=concurrency, **map_kwargs)


@functools.lru_cache(maxsize=4)
def _judge(options: tuple) -> Judge:
    """The judge of this worker process, which Ray uses for many tasks."""
    withheld, sandboxed, all_tests = options
    return Judge(withheld=withheld, sandboxed=sandboxed, all_tests=all_tests)


def _judged(table: pa.Table, *, problem: str, program: str, language: str, verdict: str, details: str,
            options: tuple) -> pa.Table:
    for name, column in (("problem", problem), ("program", program)):
        if column not in table.column_names:
            raise ValueError(f"{name}: expected a column {column!r}, found {', '.join(table.column_names)}")
    problems, programs = table[problem].to_pylist(), table[program].to_pylist()
    judged = _together([_problem(each) for each in problems], programs, language, _judge(options))
    listed = pa.types.is_list(table[program].type) or pa.types.is_large_list(table[program].type)
    kinds = (pa.list_(pa.string()), pa.list_(_DETAILS)) if listed else (pa.string(), _DETAILS)
    verdicts = [[one.verdict for one in each] if listed else each.verdict for each in judged]
    table = with_column(table, verdict, pa.array(verdicts, kinds[0]))
    rows = [[_details(one) for one in each] if listed else _details(each) for each in judged]
    return with_column(table, details, pa.array(rows, kinds[1]))


def _together(problems: list[str], programs: list[Any], language: str, judge: Judge) -> list[Any]:
    """The judgements of all rows; programs of the same problem go to the judge together, which runs several at once."""
    of_problem: dict[str, list[int]] = {}
    for at, problem in enumerate(problems):
        of_problem.setdefault(problem, []).append(at)
    judged: list[Any] = [None] * len(problems)
    for problem, rows in of_problem.items():
        lists = [[programs[at]] if isinstance(programs[at], str) else list(programs[at]) for at in rows]
        flat = iter(judge.judge(json.loads(problem), [each for programs in lists for each in programs], language))
        for at, programs_of_row in zip(rows, lists):
            taken = [next(flat) for _ in programs_of_row]
            judged[at] = taken[0] if isinstance(programs[at], str) else taken
    return judged


def _problem(value: Any) -> str:
    """A problem as JSON: of a dict without the fields that only other rows have."""
    if isinstance(value, dict):
        return json.dumps(without_nulls(value))
    if isinstance(value, str):
        return value
    raise TypeError(f"problem: expected a dict or its JSON, found {value!r}")


def _details(judgement: Judgement) -> dict[str, Any]:
    return {"message": judgement.message, "tests": json.dumps(judgement.tests), "wall_seconds": judgement.wall_seconds,
            "cpu_seconds": judgement.cpu_seconds, "peak_bytes": judgement.peak_bytes}
