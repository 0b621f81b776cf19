"""The ``offshoot`` command that this package carries, and the jobs that it does for Python: ``run`` and ``plan``."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from offshoot._facts import AtK, Estimate, ItemLine, JobEstimate, RunSummary, SampleLine
from offshoot._native import Records, use_helper

if TYPE_CHECKING:
    import pyarrow as pa

_PACKAGE = pathlib.Path(__file__).resolve().parent


def command() -> str:
    """The file of the command: the package's own, or OFFSHOOT_COMMAND, or the one on the search path."""
    own = _PACKAGE / "bin" / "offshoot"
    named = os.environ.get("OFFSHOOT_COMMAND")
    for file in (named, str(own), shutil.which("offshoot")):
        # A script of this package on the search path would only come back here.
        if file and os.path.isfile(file) and os.access(file, os.X_OK) and not _is_script(file):
            return file
    raise FileNotFoundError(f"the offshoot command: expected at {own}, found none: install the package again")


def _is_script(file: str) -> bool:
    with open(file, "rb") as opened:
        return opened.read(2) == b"#!"


def demo_model() -> str:
    """The folder of the bundled model of 6 million parameters, for examples and tests."""
    for folder in (_PACKAGE / "demo", _PACKAGE.parent.parent / "tasks" / "models" / "demo"):
        if (folder / "config.json").is_file():
            return str(folder)
    raise FileNotFoundError(f"the bundled model: expected at {_PACKAGE / 'demo'}, found none")


@dataclasses.dataclass
class Job:
    """A finished ``run``: its summary and the folder of its results."""

    summary: RunSummary
    folder: str

    @overload
    def __getitem__(self, key: Literal["accuracy", "single", "weighted_vote"]) -> Estimate | None: ...
    @overload
    def __getitem__(self, key: Literal["pass_at", "maj_at", "best_at"]) -> list[AtK]: ...
    @overload
    def __getitem__(self, key: Literal["seconds", "seconds_loading"]) -> float: ...
    @overload
    def __getitem__(self, key: Literal["items", "samples", "samples_tokens", "cancelled", "without_answer"]) -> int: ...
    @overload
    def __getitem__(self, key: str) -> Any: ...
    def __getitem__(self, key: str) -> Any:
        """``job[key]`` is ``job.summary[key]``, where the types of all keys are known; here those that are often asked
        for."""
        return cast(dict[str, Any], self.summary)[key]

    @property
    def samples(self) -> list[SampleLine]:
        """The lines of samples.jsonl."""
        return list(self._lines("samples.jsonl"))

    @property
    def items(self) -> list[ItemLine]:
        """The lines of items.jsonl."""
        return list(self._lines("items.jsonl"))

    def _lines(self, name: str) -> Iterator[Any]:
        with open(os.path.join(self.folder, name), encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)

    def to_arrow(self) -> pa.Table:
        """The samples as a ``pyarrow.Table``, whose memory is not copied."""
        import pyarrow as pa

        return pa.table(Records("sample", path=os.path.join(self.folder, "samples.jsonl")))


def run(task: dict[str, Any] | str | os.PathLike[str], *, show: bool = True, **options: Any) -> Job:
    """Runs a task: the path of a task file, or its content as a dict, whose paths are relative to the current folder.
    ``options`` are those of ``offshoot run``: ``model=``, ``out=``, ``limit=``, ``resume=True``,
    ``set={"sampling.seed": 2}``. Progress is shown on stderr if ``show``. Ctrl-C ends it; ``resume=True`` goes on."""
    with _file_of(task) as path:
        summary = cast(RunSummary, _json(["run", path, "--json"], options, show))
    return Job(summary, summary["results"])


def plan(task: dict[str, Any] | str | os.PathLike[str], **options: Any) -> JobEstimate:
    """What a task will cost, without running it: what its prompts share, memory, and its time on the device named by
    ``device_profile=``. ``options`` are those of ``offshoot plan``."""
    with _file_of(task) as path:
        return cast(JobEstimate, _json(["plan", path, "--json"], options, show=False))


class _file_of:
    """The path of a task, which may be a dict."""

    def __init__(self, task: Any):
        self.task = task
        self.file: str | None = None

    def __enter__(self) -> str:
        if isinstance(self.task, (str, os.PathLike)):
            return os.fspath(self.task)
        if not isinstance(self.task, dict):
            raise TypeError(f"task: expected a dict or the path of a task file, found {self.task!r}")
        text = json.dumps(self.task)
        # In the current folder, to which the task's paths are relative.
        handle, path = tempfile.mkstemp(prefix=".offshoot-task-", suffix=".json", dir=".")
        self.file = path
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def __exit__(self, *_: object) -> None:
        if self.file:
            os.unlink(self.file)


def arguments(options: dict[str, Any]) -> list[str]:
    """Options of the command line: ``max_tokens=9`` is ``--max-tokens 9``, True a flag, a dict KEY=VALUE pairs."""
    words: list[str] = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        if value is None or value is False:
            continue
        if value is True:
            words.append(option)
        elif isinstance(value, dict):
            for key, each in value.items():
                words += [option, f"{key}={each if isinstance(each, str) else json.dumps(each)}"]
        elif isinstance(value, (list, tuple)):
            words += [option, ",".join(map(str, value))]
        else:
            words += [option, os.fspath(value) if isinstance(value, os.PathLike) else str(value)]
    return words


def _json(words: list[str], options: dict[str, Any], show: bool) -> dict[str, Any]:
    process = subprocess.Popen([command(), *words, *arguments(options)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               stdin=subprocess.DEVNULL)
    said: list[bytes] = []
    try:
        import threading

        def relay() -> None:
            for line in process.stderr or ():
                said.append(line)
                if show:
                    print(line.decode(errors="replace"), end="", file=sys.stderr)

        reader = threading.Thread(target=relay, daemon=True)
        reader.start()
        printed = process.stdout.read() if process.stdout else b""
        code = process.wait()
        reader.join()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if code != 0:
        raise _failure(
            code, re.sub(r"\S*\.offshoot-task-\w+\.json", "the task", b"".join(said).decode(errors="replace")))
    return cast(dict[str, Any], json.loads(printed))


def _failure(code: int, said: str) -> BaseException:
    """The exception for an exit code; the sentence is the last line, or that of an option that is not known."""
    lines = [line for line in said.splitlines() if line.strip()]
    options = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    sentence = (options or lines or [f"the command ended with code {code}"])[-1].removeprefix("offshoot: ")
    if code == 130:
        return KeyboardInterrupt(sentence)
    if "No such file" in sentence or "no such file" in sentence:
        return FileNotFoundError(sentence)
    return ValueError(sentence) if code == 2 else RuntimeError(sentence)


# What model folders of strangers bring, such as chat templates, is run by the command, within bounds.
with contextlib.suppress(FileNotFoundError):
    use_helper(command())
