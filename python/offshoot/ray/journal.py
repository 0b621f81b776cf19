"""Rows that are finished, on a folder that all nodes see: what a job that died has drawn is read and not drawn again.

The folder names its job in ``journal.json``. Each attempt at a part writes a file of its own, a line a row, so that no
two processes write one file and half a last line spoils nothing. What a row's key stands for is left to ``rows``.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import os
import socket
import uuid
from typing import Any

from offshoot.ray.rows import Result

_FORMAT = 1
#: Bytes read at each of so many places of a file of weights.
_PROBE, _PROBES = 1 << 16, 16


class Journal:
    """The finished rows of one job. Only the job's own processes may write into its folder."""

    def __init__(self, folder: str, job: dict[str, Any]):
        self.folder = folder
        os.makedirs(folder, exist_ok=True)
        self._claim({"format": _FORMAT, **job})

    def _claim(self, job: dict[str, Any]) -> None:
        """Names the job in the folder, or refuses a folder that names another."""
        path = os.path.join(self.folder, "journal.json")
        draft = f"{path}.{uuid.uuid4().hex}"
        with open(draft, "w", encoding="utf-8") as file:
            json.dump(job, file, indent=1)
        try:
            os.link(draft, path)  # Fails where another process was first; nobody sees half a file.
        except FileExistsError:
            pass
        finally:
            os.unlink(draft)
        with open(path, encoding="utf-8") as file:
            try:
                found = json.load(file)
            except ValueError as error:
                raise ValueError(f"{path}: expected the name of a job as JSON: {error}") from None
        for name in {**job, **found}:
            if found.get(name) != job.get(name):
                raise ValueError(f"journal {self.folder}: is of another job, {name}: expected {job.get(name)!r}, found "
                                 f"{found.get(name)!r}: name another folder, or delete this one")

    def part(self, keys: list[str]) -> "Part":
        """The part of these rows."""
        name = hashlib.sha256("".join(keys).encode()).hexdigest()[:24]
        return Part(self.folder, name, set(keys))


class Part:
    """The rows of one call: those found finished, and a file for those that finish now."""

    def __init__(self, folder: str, name: str, keys: set[str]):
        self.folder, self.name = folder, name
        self._file: Any = None
        self.found: dict[str, Result] = {}
        for file in sorted(os.listdir(folder)):
            if file.startswith(f"{name}.") and file.endswith(".jsonl"):
                self._read(os.path.join(folder, file), keys)

    def __enter__(self) -> "Part":
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()

    def add(self, key: str, result: Result) -> None:
        """Keeps a finished row: a process that dies after this has not lost it."""
        if self._file is None:
            self._file = self._own_file()
        line = json.dumps({"key": key, **dataclasses.asdict(result)}) + "\n"
        self._file.write(line.encode())

    def _own_file(self):
        writer = f"{self.name}.{socket.gethostname()}-{os.getpid()}"
        for attempt in itertools.count():
            try:
                return open(os.path.join(self.folder, f"{writer}-{attempt}.jsonl"), "xb", buffering=0)
            except FileExistsError:
                continue

    def _read(self, path: str, keys: set[str]) -> None:
        with open(path, "rb") as file:
            lines = file.read().split(b"\n")
        # What follows the last end of line is half a line: its writer died.
        for number, line in enumerate(lines[:-1], 1):
            try:
                row = json.loads(line)
                key = row.pop("key")
                if key in keys:
                    self.found[key] = Result(**row)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                found = f"{line[:80]!r} ({error})"
                raise ValueError(f"{path}: line {number}: expected a finished row, found {found}") from None


def fingerprint(folder: str) -> str:
    """A name of the model in a folder that is the same at every place where a copy of it is: a hash of its descriptions
    and of probes of its weights."""
    hashed = hashlib.sha256()
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if not name.endswith((".json", ".jinja", ".safetensors", ".model")) or not os.path.isfile(path):
            continue
        size = os.path.getsize(path)
        hashed.update(f"{name} {size}\n".encode())
        with open(path, "rb") as file:
            if not name.endswith(".safetensors") or size <= _PROBE * _PROBES:
                hashed.update(file.read())
                continue
            for at in range(_PROBES):
                file.seek((size - _PROBE) * at // (_PROBES - 1))
                hashed.update(file.read(_PROBE))
    return hashed.hexdigest()[:32]
