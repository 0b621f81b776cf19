"""What a processor is told: the model, its engine's arguments, how many actors with what each, and the journal."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import ray

from offshoot._params import SamplingParams, _whole
from offshoot.ray.blocks import ROW


@dataclasses.dataclass(kw_only=True, slots=True)
class OffshootConfig:
    """How ``build_processor`` runs a model.

    ``model``: its folder, at the same path on every node. ``engine_kwargs``: further arguments of ``offshoot.LLM``,
    such as ``seed``, ``device``, ``kv_dtype``, ``threads``. ``concurrency``: the number of actors, each with the model,
    or the least and the most. ``num_gpus`` and ``num_cpus``: of an actor; by default a GPU for each of
    ``tensor_parallel`` where the cluster has some, and a CPU for each of the engine's ``threads``. ``batch_size``: rows
    of a call; by default a block, which for ``by_prefix`` is a part. ``sampling_params``: of rows that say nothing
    else. ``row``: the column of the row's number, from which its random numbers follow; it is made if the dataset has
    none; None: every row has a ``seed`` of its own. ``journal``: a folder that all nodes see, where finished rows are
    kept, so that what died goes on from there. ``should_continue_on_error``: a row that cannot be sampled says why in
    the column ``error`` and does not end the job. ``accelerator_type``, ``runtime_env`` and ``ray_remote_args`` are
    Ray's.
    """

    model: str | os.PathLike
    engine_kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    concurrency: int | tuple[int, int] = 1
    num_gpus: float | None = None
    num_cpus: float | None = None
    tensor_parallel: int = 1
    batch_size: int | None = None
    sampling_params: dict[str, Any] = dataclasses.field(default_factory=dict)
    row: str | None = ROW
    journal: str | os.PathLike | None = None
    should_continue_on_error: bool = False
    accelerator_type: str | None = None
    runtime_env: dict[str, Any] | None = None
    ray_remote_args: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        self.model = os.fspath(self.model)
        least, most = self.actors
        if least > most:
            raise ValueError(f"concurrency: expected at least as many at most as at least, found {self.concurrency}")
        self.tensor_parallel = _whole("tensor_parallel", self.tensor_parallel, 1)
        if self.batch_size is not None:
            self.batch_size = _whole("batch_size", self.batch_size, 1)
        for name, replaced in (("model", "model"), ("tensor_parallel_size", "tensor_parallel")):
            if name in self.engine_kwargs:
                raise ValueError(f"engine_kwargs: expected no {name!r}: it is OffshootConfig({replaced}=)")
        if self.journal is not None:
            self.journal = os.path.abspath(self.journal)
        SamplingParams.from_optional(**self.sampling_params)

    @property
    def actors(self) -> tuple[int, int]:
        """The least and the most actors."""
        pair = self.concurrency if isinstance(self.concurrency, (tuple, list)) else (self.concurrency, self.concurrency)
        if len(pair) != 2:
            raise ValueError(f"concurrency: expected a number or a pair of numbers, found {self.concurrency!r}")
        return _whole("concurrency", pair[0], 1), _whole("concurrency", pair[1], 1)

    @property
    def llm_arguments(self) -> dict[str, Any]:
        """The arguments of each actor's ``LLM``."""
        return {"model": self.model, "tensor_parallel_size": self.tensor_parallel, **self.engine_kwargs}

    def remote_arguments(self) -> dict[str, Any]:
        """What an actor asks of the cluster, which must be running."""
        asked = dict(self.ray_remote_args)
        gpus = self.num_gpus
        if gpus is None:
            on_cpu = self.engine_kwargs.get("device") == "cpu" or not ray.cluster_resources().get("GPU")
            gpus = 0 if on_cpu else self.tensor_parallel
        if gpus:
            asked["num_gpus"] = gpus
        asked["num_cpus"] = self.num_cpus if self.num_cpus is not None else self.engine_kwargs.get("threads") or 1
        for name in ("accelerator_type", "runtime_env"):
            if getattr(self, name) is not None:
                asked[name] = getattr(self, name)
        return asked
