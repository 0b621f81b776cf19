"""``judge``: verdicts on a dataset's programs, over the CPUs of the cluster. How a program is judged is left to
``offshoot.judging``."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import ray.data

from offshoot.judging import Judge, Judgement
from offshoot.ray.blocks import check_dataset, with_column, without_nulls

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
    withheld: str | Sequence[str] = (),
    sandboxed: bool = True,
    all_tests: bool = False,
    **map_kwargs: Any,
) -> ray.data.Dataset:
    """Judges each row's program on the row's problem, on all CPUs of the cluster unless ``concurrency`` limits the
    tasks.

    ``problem``: the column of a benchmark's row, as a dict or as JSON text, which keeps fields without a value;
    ``program``: the column of a program, or of a list of them, such as the samples of one prompt. The column
    ``verdict`` gets AC, WA, TLE and so on; ``details`` the message, the tests as JSON, times and memory; both lists for
    lists, and nulls where there is no program, as in rows that could not be sampled. ``withheld``,
    ``sandboxed`` and ``all_tests`` are ``offshoot.Judge``'s.
    """
    options = ((withheld,) if isinstance(withheld, str) else tuple(withheld), bool(sandboxed), bool(all_tests))
    check_dataset(dataset)
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
    programs = table[program].to_pylist()
    # A row without a program needs no problem either.
    problems = [None if each is None else _problem(of) for of, each in zip(table[problem].to_pylist(), programs)]
    judged = _together(problems, programs, language, _judge(options))
    listed = pa.types.is_list(table[program].type) or pa.types.is_large_list(table[program].type)
    kinds = (pa.list_(pa.string()), pa.list_(_DETAILS)) if listed else (pa.string(), _DETAILS)
    table = with_column(table, verdict, pa.array([_each(each, _verdict) for each in judged], kinds[0]))
    return with_column(table, details, pa.array([_each(each, _details) for each in judged], kinds[1]))


#: What became of a row's program, or of its list of programs.
_Judged = Judgement | list[Judgement | None] | None


def _together(problems: list[str | None], programs: list[Any], language: str, judge: Judge) -> list[_Judged]:
    """The judgements of all rows; programs of the same problem go to the judge together, which runs several at once."""
    places: dict[str, list[tuple[int, int | None]]] = {}
    judged: list[Any] = [None] * len(problems)
    for row, (problem, given) in enumerate(zip(problems, programs)):
        if problem is None:
            continue
        if isinstance(given, str):
            places.setdefault(problem, []).append((row, None))
            continue
        judged[row] = [None] * len(given)
        places.setdefault(problem, []).extend((row, at) for at, each in enumerate(given) if each is not None)
    for problem, asked in places.items():
        texts = [programs[row] if at is None else programs[row][at] for row, at in asked]
        for text in texts:
            if not isinstance(text, str):
                raise TypeError(f"program: expected a text or a list of texts, found {text!r}")
        for (row, at), judgement in zip(asked, judge.judge(json.loads(problem), texts, language)):
            if at is None:
                judged[row] = judgement
            else:
                judged[row][at] = judgement
    return judged


def _each(judged: _Judged, of: Callable[[Judgement], Any]) -> Any:
    if isinstance(judged, list):
        return [None if one is None else of(one) for one in judged]
    return None if judged is None else of(judged)


def _verdict(judgement: Judgement) -> str:
    return judgement.verdict


def _problem(value: Any) -> str:
    """A problem as JSON: of a dict without the fields that only other rows have."""
    if isinstance(value, dict):
        return json.dumps(without_nulls(value))
    if isinstance(value, str):
        return value
    raise TypeError(f"problem: expected a dict or its JSON, found {value!r}")


def _details(judgement: Judgement) -> dict[str, Any]:
    tests = [without_nulls(dataclasses.asdict(test)) for test in judgement.tests]
    return {"message": judgement.message, "tests": json.dumps(tests), "wall_seconds": judgement.wall_seconds,
            "cpu_seconds": judgement.cpu_seconds, "peak_bytes": judgement.peak_bytes}
