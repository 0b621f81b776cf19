"""Adapters (LoRA) of an ``LLM``: those that were loaded under a name, and those that come with requests, as vLLM's do.
What an adapter computes, and what runs on when it is replaced, is the engine's."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from offshoot._native import Engine, Tensors
from offshoot._vllm import LoRARequest
from offshoot._weights import NamedTensors, add_to, is_folder

#: How an adapter is named: by vLLM's request, or by the name that it was loaded under.
AdapterName = LoRARequest | str

#: The path that the engine gives for an adapter that was loaded from tensors: there is no folder to read again.
_IN_MEMORY = "tensors in memory"


@dataclasses.dataclass(frozen=True, slots=True)
class LoadedAdapter:
    """An adapter that is loaded: its ``version``, which no other has had, its largest ``rank``, and ``path``, the
    folder that it was read from, or what stands for tensors."""

    name: str
    version: int
    rank: int
    path: str


class Adapters:
    """The adapters of an engine, ``most`` at once. Threads share it."""

    def __init__(self, engine: Engine, most: int):
        self._engine, self._most, self._lock = engine, most, threading.RLock()
        #: What came with requests, by name; those used longest ago come first.
        self._of_requests: dict[str, LoRARequest] = {}

    def loaded(self) -> dict[str, LoadedAdapter]:
        """What is loaded, by name."""
        return {name: LoadedAdapter(name, version, rank, path)
                for name, version, rank, path in self._engine.adapters()}

    def load(self, name: str, given: str | os.PathLike[str] | NamedTensors, config: Any) -> int:
        """Loads an adapter, in place of one of the same name; its version."""
        self._check_enabled()
        if not isinstance(name, str) or not name:
            raise ValueError(f"name: expected a text that is not empty, found {name!r}")
        with self._lock:
            version = self._loaded(name, given, config)
            # With an error what has the name stays, and with it the request that it came with.
            self._of_requests.pop(name, None)
        return version

    def _loaded(self, name: str, given: str | os.PathLike[str] | NamedTensors, config: Any) -> int:
        if is_folder(given):
            if config is not None:
                raise ValueError("config: expected None beside a folder, which has adapter_config.json")
            return self._engine.load_adapter(name, os.fspath(given))  # type: ignore[arg-type]
        tensors = Tensors()
        add_to(tensors, given, copy=not isinstance(given, (list, tuple, Mapping)))  # type: ignore[arg-type]
        return self._engine.load_adapter_tensors(name, _fields(config), tensors)

    def unload(self, name: str) -> None:
        """Removes an adapter."""
        with self._lock:
            self._engine.unload_adapter(str(name))
            self._of_requests.pop(name, None)

    def add(self, request: LoRARequest) -> None:
        """Loads the adapter of a request, as vLLM's ``add_lora`` does."""
        self._versions([request])

    def remove(self, number: int) -> bool:
        """Removes the adapter of a request with this ``lora_int_id``; False if there is none."""
        with self._lock:
            name = next((name for name, known in self._of_requests.items() if known.lora_int_id == number), None)
            if name is not None:
                self.unload(name)
        return name is not None

    def numbers(self) -> set[int]:
        """The ``lora_int_id`` of all that came with requests."""
        with self._lock:
            return {known.lora_int_id for known in self._of_requests.values()}

    def of_prompts(self, given: Any, prompts: int) -> tuple[list[LoRARequest | None], list[int | None]]:
        """The request and the version of the adapter of each prompt. ``given``: one for all, or a list."""
        each = list(given) if isinstance(given, (list, tuple)) else [given] * prompts
        if len(each) != prompts:
            raise ValueError(f"lora_request: expected {prompts}, one for each prompt, found {len(each)}")
        for one in each:
            if not (one is None or isinstance(one, (LoRARequest, str))):
                raise TypeError(f"lora_request: expected a LoRARequest, an adapter's name or None, found {one!r}")
        if all(one is None for one in each):
            return [None] * prompts, [None] * prompts
        versions = self._versions([one for one in each if one is not None])
        requests = [None if one is None else one if isinstance(one, LoRARequest) else self._request(one)
                    for one in each]
        return requests, [None if one is None else versions[one.lora_name] for one in requests]

    def version(self, given: AdapterName | None) -> int | None:
        """The version of one adapter."""
        return self.of_prompts(given, 1)[1][0]

    def _request(self, name: str) -> LoRARequest:
        """An adapter that was loaded by name, as vLLM names it."""
        found = self.loaded()[name]
        return LoRARequest(name, found.version + 1, found.path)

    def _check_enabled(self) -> None:
        if not self._most:
            raise ValueError("lora_request: expected an LLM made with enable_lora=True, found one without adapters")

    def _versions(self, given: Sequence[AdapterName]) -> dict[str, int]:
        """The version of each, by name; those of requests are loaded if they are not."""
        self._check_enabled()
        wanted: dict[str, LoRARequest | None] = {}
        for one in given:
            name, request = (one, None) if isinstance(one, str) else (one.lora_name, one)
            other = wanted.setdefault(name, request)
            if request is not None and other is not None and _differ(request, other):
                raise ValueError(f"lora_request: expected one adapter of each name, found two named {name!r}")
            wanted[name] = other or request
        if len(wanted) > self._most:
            raise ValueError(f"lora_request: expected at most {self._most} adapters at once (max_loras), "
                             f"found {len(wanted)}")
        # Names alone do not wait for what another thread loads.
        requests = [request for request in wanted.values() if request is not None]
        with self._lock if requests else contextlib.nullcontext():
            loaded = self.loaded()
            for name, request in wanted.items():
                if request is None and name not in loaded:
                    known = ", ".join(sorted(loaded)) or "none"
                    raise ValueError(f"lora_request: expected an adapter that is loaded ({known}), found {name!r}")
            for request in requests:
                self._take(request, loaded, set(wanted))
            return {name: loaded[name].version for name in wanted}

    def _take(self, request: LoRARequest, loaded: dict[str, LoadedAdapter], wanted: set[str]) -> None:
        """Loads the adapter of a request, unless it is loaded already."""
        name = request.lora_name
        known = self._of_requests.get(name)
        is_same = name in loaded and (known is None or not _differ(request, known))
        path = request.lora_path
        if is_same and known is None and not request.load_inplace and not _is_path(path, loaded[name].path):
            raise ValueError(f"lora_request: expected {loaded[name].path}, from which load_adapter() has loaded "
                             f"{name!r}, found {path}: call unload_adapter() first, or set load_inplace")
        if not is_same or request.load_inplace:
            if request.lora_path == _IN_MEMORY:
                raise ValueError(f"lora_request: expected {name!r} to be loaded still, as it was given as tensors: "
                                 "call load_adapter() with them again")
            if name not in loaded and len(loaded) >= self._most:
                self._make_room(loaded, wanted)
            self._engine.load_adapter(name, request.lora_path)
            loaded[name] = self.loaded()[name]
            known = request
        if known is not None:
            # Used last, so it is the last to be removed.
            self._of_requests.pop(name, None)
            self._of_requests[name] = known

    def _make_room(self, loaded: dict[str, LoadedAdapter], wanted: set[str]) -> None:
        """Removes the adapter that was used longest ago, of those that came with requests."""
        oldest = next((name for name in self._of_requests if name not in wanted), None)
        if oldest is None:
            raise ValueError(f"lora_request: expected room for one more adapter, found {len(loaded)} loaded of at most "
                             f"{self._most} (max_loras), by load_adapter(): call unload_adapter() for one")
        self.unload(oldest)
        del loaded[oldest]


def _differ(one: LoRARequest, other: LoRARequest) -> bool:
    return (one.lora_int_id, one.lora_path) != (other.lora_int_id, other.lora_path)


def _is_path(one: str, other: str) -> bool:
    return one == other or os.path.realpath(one) == os.path.realpath(other)


def _fields(config: Any) -> str:
    """The fields of an adapter's configuration as JSON: those of a dict, or of PEFT's own object."""
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    if not isinstance(config, Mapping):
        raise TypeError("config: expected the fields of adapter_config.json (a dict or PEFT's LoraConfig) beside "
                        f"tensors, found {config!r}")
    return json.dumps(dict(config), default=_plain)


def _plain(value: Any) -> Any:
    """What JSON has no form for: a set, as PEFT keeps the names of modules in, or an enum."""
    if isinstance(value, Iterable):
        return sorted(value)
    return str(getattr(value, "value", value))
