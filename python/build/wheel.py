"""Builds the wheel: first the `offshoot` command and the demo model, which it carries, then the module, by maturin.

The judge starts the command for its sandboxes, so it must be a program of its own. Cargo builds both from one library.

`pip install ./python` builds for this machine. `python python/build/wheel.py FOLDER [PROFILE]` (with the packages
maturin and wheel) writes a wheel for others, whose manylinux tag names the C library that the module and the command
need: build on the oldest one to be served. Cargo's profile is `release` unless named.
"""

import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

import maturin
from maturin import *  # noqa: F403 - the other hooks are maturin's

PYTHON = pathlib.Path(__file__).resolve().parent.parent
ROOT = PYTHON.parent
PACKAGE = PYTHON / "offshoot"


def _carry(profile="release"):
    """Puts the command and the demo model into the package."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    cargo = ["cargo", "build", "--profile", profile, "--locked", "-p", "offshoot", "-p", "offshoot-python", "--bin",
             "offshoot"]
    subprocess.run([*cargo, "--target-dir", str(target)], cwd=ROOT, check=True)
    command = PACKAGE / "bin" / "offshoot"
    command.parent.mkdir(exist_ok=True)
    # The folder of the profile `dev` is called so.
    shutil.copyfile(target / ("debug" if profile == "dev" else profile) / "offshoot", command)
    subprocess.run(["strip", str(command)], check=False)
    command.chmod(0o755)
    demo = PACKAGE / "demo"
    demo.mkdir(exist_ok=True)
    for file in (ROOT / "tasks" / "models" / "demo").iterdir():
        if file.suffix in (".json", ".safetensors", ".jinja") and file.name != "train.json":
            shutil.copyfile(file, demo / file.name)


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    _carry()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    _carry()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)


def _glibc(program):
    """The newest minor version of glibc 2 whose symbols a program or library uses."""
    return max(int(minor) for minor in re.findall(rb"GLIBC_2\.([0-9]+)", program))


def main(folder, profile="release"):
    """Writes a wheel with a manylinux tag into a folder."""
    _carry(profile)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    with tempfile.TemporaryDirectory() as untagged:
        subprocess.run([
            sys.executable, "-m", "maturin", "build", "--profile", profile, "--strip", "--locked",
            "--target-dir", str(target), "--compatibility", "linux", "--manifest-path", str(PYTHON / "Cargo.toml"),
            "--out", untagged,
        ], check=True)
        [wheel] = pathlib.Path(untagged).iterdir()
        with zipfile.ZipFile(wheel) as files:
            programs = [files.read(name) for name in files.namelist() if name.endswith((".so", "/bin/offshoot"))]
        tag = f"manylinux_2_{max(map(_glibc, programs))}_{platform.machine()}"
        subprocess.run(
            [sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", tag, str(wheel)], check=True)
        [wheel] = pathlib.Path(untagged).iterdir()
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
        shutil.copy(wheel, folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
