"""The actor of a processor: a model, and the rows of a block drawn in one generation, so that what they begin with
alike is computed once. Which rows are a block is left to the dataset."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import ray

from offshoot._llm import LLM
from offshoot._native import SampleFailed
from offshoot.ray import rows
from offshoot.ray.blocks import unpacked
from offshoot.ray.config import OffshootConfig
from offshoot.ray.journal import Journal, fingerprint
from offshoot.ray.rows import Request, Result

#: Counters of ``LLM.metrics()`` that a job adds up over its actors.
COUNTERS = ("prompt_tokens_logical", "prompt_tokens_computed", "tokens_sampled")


class Worker:
    """What Ray Data makes in each actor and calls with each block."""

    def __init__(self, config: OffshootConfig, totals: Any):
        self.config, self.totals = config, totals
        self.llm = LLM(**config.llm_arguments)
        self.name = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.rows = {"rows": 0, "rows_from_journal": 0, "rows_failed": 0}
        self.job, self.journal = "", None
        if config.journal is not None:
            kv_dtype = config.engine_kwargs.get("kv_dtype") or config.engine_kwargs.get("kv_cache_dtype") or "auto"
            job = {"model": fingerprint(config.model), "seed": self.llm.seed, "kv_dtype": kv_dtype}
            asked = {name: config.engine_kwargs.get(name) for name in ("weights", "activations")}
            job |= {name: value for name, value in asked.items() if value is not None}
            self.job, self.journal = "-".join(map(str, job.values())), Journal(config.journal, job)

    def __call__(self, table: pa.Table) -> pa.Table:
        read = [name for name in (*rows.PROMPTS, "sampling_params", "n", self.config.row) if name in table.column_names]
        given = rows.requests(self.llm, table.select(read).to_pylist(), self.config.sampling_params, self.config.row)
        results: list[Result | Exception | None] = [each if isinstance(each, Exception) else None for each in given]
        self._stop_at(results, table)
        made = [at for at, each in enumerate(given) if isinstance(each, Request)]
        if self.journal is None:
            self._draw(made, given, results, table, lambda at, result: None)
        else:
            keys = {at: given[at].key(self.job) for at in made}
            with self.journal.part(list(keys.values())) as part:
                for at in made:
                    results[at] = part.found.get(keys[at])
                found = sum(results[at] is not None for at in made)
                self.rows["rows_from_journal"] += found
                left = [at for at in made if results[at] is None]
                self._draw(left, given, results, table, lambda at, result: part.add(keys[at], result))
        finished = [Result([], 0, _sentence(each)) if isinstance(each, Exception) else each for each in results]
        self.rows["rows"] += len(finished)
        self.rows["rows_failed"] += sum(each.error is not None for each in finished)
        self._count()
        return rows.with_results(table, finished)

    def _draw(self, left: list[int], given: list, results: list, table: pa.Table, keep) -> None:
        """Draws the rows that are left, keeping each as it is finished."""
        for at, result in _finished(self.llm, [given[at] for at in left]):
            results[left[at]] = result
            if isinstance(result, Exception):
                self._stop_at(results, table)
            else:
                keep(left[at], result)

    def _stop_at(self, results: list, table: pa.Table) -> None:
        """Raises what is wrong with a row, if that ends the job."""
        if self.config.should_continue_on_error:
            return
        for at, result in enumerate(results):
            if isinstance(result, Exception):
                row = self.config.row
                number = table[row][at].as_py() if row in table.column_names else f"{at} of its block"
                raise type(result)(f"row {number}: {result}") from result

    def _count(self) -> None:
        metrics = self.llm.metrics()
        self.totals.set.remote(self.name, {**self.rows, **{name: metrics[name] for name in COUNTERS}})


class BlockWorker(Worker):
    """A ``Worker`` of whole blocks, each packed as one row."""

    def __call__(self, table: pa.Table) -> pa.Table:
        return super().__call__(unpacked(table))


@ray.remote(num_cpus=0)
class Totals:
    """The counters of a job's actors, of those that died, too: what each had after its last finished block."""

    def __init__(self):
        self.actors: dict[str, dict[str, int]] = {}

    def set(self, actor: str, counters: dict[str, int]) -> None:
        self.actors[actor] = counters

    def sum(self) -> dict[str, int]:
        names = ("rows", "rows_from_journal", "rows_failed", *COUNTERS)
        sums = {name: sum(each[name] for each in self.actors.values()) for name in names}
        return {"actors": len(self.actors), **sums}


def _finished(llm: LLM, requests: list[Request]) -> Iterator[tuple[int, Result | Exception]]:
    """Draws requests together: each by its index, with its samples or its failure, as it ends."""
    if not requests:
        return
    names = [request.name for request in requests]
    job = llm._begin([request.prompt for request in requests], [request.params for request in requests], names=names,
                     stream=False)
    ended = set()
    for event in job.events():
        if event is None or event.prompt in ended:
            continue
        if isinstance(event, SampleFailed):
            ended.add(event.prompt)
            yield event.prompt, event.error
        elif job.take(event):
            ended.add(event.prompt)
            yield event.prompt, Result.of(job.output(event.prompt))
            job.samples[event.prompt] = {}


def _sentence(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
