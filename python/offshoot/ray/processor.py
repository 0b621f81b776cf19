"""``build_processor``, with the call shape of ``ray.data.llm``: a dataset's rows through actors that hold a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import ray
import ray.data

from offshoot.ray.blocks import check_dataset, in_order, numbered, packed
from offshoot.ray.config import OffshootConfig
from offshoot.ray.worker import BlockWorker, Totals, Worker

Row = dict[str, Any]


class Processor:
    """A function from a dataset to the dataset of its results; see ``build_processor``."""

    def __init__(self, config: OffshootConfig, preprocess: Callable[[Row], Row] | None,
                 postprocess: Callable[[Row], Row] | None, preprocess_map_kwargs: dict, postprocess_map_kwargs: dict):
        self.config, self.preprocess, self.postprocess = config, preprocess, postprocess
        self.preprocess_map_kwargs, self.postprocess_map_kwargs = preprocess_map_kwargs, postprocess_map_kwargs
        self._totals: Any = None

    def __call__(self, dataset: ray.data.Dataset) -> ray.data.Dataset:
        config = dataclasses.replace(self.config)  # Its fields may have been set since: they are checked again.
        check_dataset(dataset)
        if self._totals is None:
            self._totals = Totals.remote()
        if config.row is not None:
            dataset = _with_numbers(dataset, config.row)
        if self.preprocess is not None:
            dataset = dataset.map(_before(self.preprocess, config.row), **self.preprocess_map_kwargs)
        least, most = config.actors
        # One part at a time: an actor that has several in hand holds back what another one could begin.
        size = {"size": least} if least == most else {"min_size": least, "max_size": most}
        actors = ray.data.ActorPoolStrategy(**size, max_tasks_in_flight_per_actor=1)
        worker, batch_size = Worker, config.batch_size
        if batch_size is None:
            # On GPUs Ray wants a number of rows, for which it joins blocks: a block is one row to it.
            worker, batch_size = BlockWorker, 1
            dataset = dataset.map_batches(packed, batch_size=None, batch_format="pyarrow", num_cpus=0)
        dataset = dataset.map_batches(
            worker, fn_constructor_kwargs={"config": config, "totals": self._totals}, batch_size=batch_size,
            batch_format="pyarrow", zero_copy_batch=True, compute=actors, **config.remote_arguments())
        if self.postprocess is not None:
            dataset = dataset.map(_after(self.postprocess), **self.postprocess_map_kwargs)
        return dataset

    def metrics(self) -> dict[str, int]:
        """Sums over all actors so far: rows, those read from the journal, those that failed; prompt tokens asked for
        and computed, tokens sampled. An actor that died counts with what it had after its last finished block."""
        return ray.get(self._totals.sum.remote()) if self._totals is not None else {}


def build_processor(
    config: OffshootConfig,
    preprocess: Callable[[Row], Row] | None = None,
    postprocess: Callable[[Row], Row] | None = None,
    preprocess_map_kwargs: dict[str, Any] | None = None,
    postprocess_map_kwargs: dict[str, Any] | None = None,
) -> Processor:
    """A function from a dataset to the dataset of its results.

    A row has ``prompt`` (a text), ``messages`` or ``prompt_token_ids``; and, if it likes, ``sampling_params`` (a dict)
    and ``n``. ``preprocess`` makes such rows of the dataset's: what it returns is added to the row. Results keep the
    row's columns and add ``generated_text`` and ``generated_tokens`` of the first sample, ``outputs`` (all samples,
    each a dict), ``num_input_tokens``, ``num_generated_tokens`` and ``error``. ``postprocess`` gets a row with all
    that; what it returns is the row that remains. Rows with an ``error`` pass it by.

    Samples are those of one ``LLM(model, seed=...).generate`` of the whole dataset, whatever the number of actors. Rows
    come as their blocks finish: sort by the column ``row_number`` for the dataset's own order.
    """
    if not isinstance(config, OffshootConfig):
        raise TypeError(f"config: expected an OffshootConfig, found {config!r}")
    return Processor(config, preprocess, postprocess, preprocess_map_kwargs or {}, postprocess_map_kwargs or {})


def _with_numbers(dataset: ray.data.Dataset, row: str) -> ray.data.Dataset:
    """The dataset with its rows' numbers: itself, if it is known to have them."""
    schema = dataset.schema(fetch_if_missing=False)
    if schema is not None and row in schema.names:
        return dataset
    blocks = in_order(dataset)
    return ray.data.from_arrow_refs(numbered(blocks, row))


def _before(preprocess: Callable[[Row], Row], row: str | None) -> Callable[[Row], Row]:
    """A function to a row with what ``preprocess`` adds; the row keeps its number."""

    def before(given: Row) -> Row:
        number = {row: given[row]} if row is not None else {}
        made = preprocess(dict(given))
        if not isinstance(made, Mapping):
            raise TypeError(f"preprocess: expected to return a dict of columns, found {made!r}")
        return {**given, **made, **number}

    return before


def _after(postprocess: Callable[[Row], Row]) -> Callable[[Row], Row]:
    """A function to what ``postprocess`` leaves of a row that has no error."""

    def after(row: Row) -> Row:
        return postprocess(row) if row["error"] is None else row

    return after
