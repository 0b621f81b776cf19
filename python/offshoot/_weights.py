"""Weights that change in a loaded model: what trainers give is taken in tensor by tensor, as they send it, and put in
force as a whole before the next use of the engine. Also what scripts see of vLLM's worker, through which trainers reach
the model."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from offshoot._native import Engine, Tensors

if TYPE_CHECKING:
    from offshoot._llm import LLM

#: Names of tensors with the tensors: of numpy, torch, or whatever has ``__dlpack__``.
NamedTensors = Mapping[str, Any] | Iterable[tuple[str, Any]]


class Given:
    """Tensors that were given to an engine and are not in force yet. Threads share it."""

    def __init__(self, engine: Engine):
        self._engine, self._tensors, self._lock = engine, Tensors(), threading.RLock()

    def take(self, weights: NamedTensors) -> set[str]:
        """Takes tensors in; their owner may change them afterwards. An error gives up all that is not in force."""
        return self._added(weights, copy=True)

    def commit(self, weights: NamedTensors = (), label: str | None = None) -> set[str]:
        """Puts tensors in force, with all that were taken before: all or, with an error, none. Tensors of a list or a
        dict are read where they are; those that are made one by one may be gone when the last one comes."""
        with self._lock:
            names = self._added(weights, copy=not isinstance(weights, (list, tuple, Mapping)))
            if len(self._tensors):
                self._engine.update_weights(self._tensors, label=label)
        return names

    def put_in_force(self) -> None:
        """Puts in force what was taken, unless the model's own weights sleep: then it waits until they are awake."""
        with self._lock:
            if len(self._tensors) and not self._engine.asleep()[0]:
                self.commit()

    def drop(self) -> None:
        """Gives up what is not in force."""
        self._tensors.clear()

    def _added(self, weights: NamedTensors, copy: bool) -> set[str]:
        with self._lock:
            try:
                return add_to(self._tensors, weights, copy)
            except BaseException:
                self._tensors.clear()
                raise


def add_to(tensors: Tensors, weights: NamedTensors, copy: bool) -> set[str]:
    """Adds tensors to those of the engine; their names. ``copy``: whether their owner may change them afterwards."""
    names: set[str] = set()
    for pair in weights.items() if isinstance(weights, Mapping) else weights:
        name, tensor = _pair(pair)
        capsule, is_bf16 = _lent(name, tensor)
        tensors.add(name, capsule, is_bf16=is_bf16, copy=copy)
        names.add(name)
    return names


def _pair(given: Any) -> tuple[str, Any]:
    if not isinstance(given, (tuple, list)) or len(given) != 2 or not isinstance(given[0], str):
        raise TypeError(f"weights: expected pairs of a tensor's name and the tensor, found {type(given).__name__}")
    return given[0], given[1]


def _lent(name: str, tensor: Any) -> tuple[object, bool]:
    """A tensor as a capsule of DLPack, row-major, where it lies if that is host memory or a GPU of CUDA, and whether
    its 16-bit numbers are bf16, for which numpy has no type."""
    if not hasattr(tensor, "__dlpack__"):
        raise TypeError(f"weights: {name}: expected a tensor of numpy, torch or another library with __dlpack__, "
                        f"found {type(tensor).__name__}")
    is_bf16 = is_on_gpu = False
    if hasattr(tensor, "flags"):  # numpy
        if str(tensor.dtype) == "bfloat16":
            tensor, is_bf16 = tensor.view("uint16"), True
        if tensor.dtype.byteorder == ">" or not (tensor.flags.c_contiguous and tensor.flags.writeable):
            tensor = tensor.astype(tensor.dtype.newbyteorder("="), order="C", copy=True)
    elif hasattr(tensor, "detach"):  # torch
        tensor = tensor.detach()
        is_on_gpu = tensor.device.type == "cuda" and Tensors.takes_from_gpu(tensor.device.index)
        tensor = tensor.contiguous() if is_on_gpu else tensor.cpu().contiguous()
    try:
        return (_on_gpu(tensor) if is_on_gpu else tensor.__dlpack__()), is_bf16
    except (BufferError, TypeError) as error:
        raise TypeError(f"weights: {name}: expected bf16, f16 or f32, found {tensor.dtype} ({error})") from error


def _on_gpu(tensor: Any) -> object:
    """A tensor of torch as a capsule that is read on its GPU's default stream. What torch has enqueued there is waited
    for; of several GPUs torch does so on the current one."""
    import torch

    with torch.cuda.device(tensor.device):
        return tensor.__dlpack__(stream=1)  # The number of the default stream.


def is_folder(weights: Any) -> bool:
    return isinstance(weights, (str, os.PathLike))


def tags_of(tags: Iterable[str] | str | None) -> list[str] | None:
    """Tags of `sleep` and `wake_up` as the engine takes them; one may be given alone."""
    return [tags] if isinstance(tags, str) else None if tags is None else list(tags)


@dataclasses.dataclass(frozen=True)
class WorkerView:
    """An ``LLM`` as trainers see vLLM's worker behind it: by
    ``llm.llm_engine.model_executor.driver_worker.model_runner.model`` they reach ``load_weights``."""

    _llm: LLM = dataclasses.field(repr=False)

    @property
    def driver_worker(self) -> "WorkerView":
        return self

    @property
    def model_runner(self) -> "WorkerView":
        return self

    @property
    def model(self) -> "WorkerView":
        return self

    def load_weights(self, weights: NamedTensors) -> set[str]:
        return self._llm.load_weights(weights)
