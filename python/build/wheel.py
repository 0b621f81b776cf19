"""Builds the wheel: first the `offshoot` command and the demo model, which it carries, then the module, by maturin.

The judge starts the command for its sandboxes, so it must be a program of its own. Cargo builds both from one library.

`pip install ./python` builds for this machine. `python python/build/wheel.py FOLDER` (with the package maturin) writes a wheel for
others, whose manylinux tag names the C library that the module and the command need: build on the oldest one to be served.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import maturin
from maturin import *  # noqa: F403 - the other hooks are maturin's

PYTHON = pathlib.Path(__file__).resolve().parent.parent
ROOT = PYTHON.parent
PACKAGE = PYTHON / "offshoot"


def _carry():
    """Puts the command and the demo model into the package."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    cargo = ["cargo", "build", "--release", "--locked", "-p", "offshoot", "-p", "offshoot-python", "--bin", "offshoot"]
    subprocess.run([*cargo, "--target-dir", str(target)], cwd=ROOT, check=True)
    command = PACKAGE / "bin" / "offshoot"
    command.parent.mkdir(exist_ok=True)
    shutil.copyfile(target / "release" / "offshoot", command)
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


def _glibc(file):
    """The newest minor version of glibc 2 whose symbols a program or library uses."""
    return max(int(minor) for minor in re.findall(rb"GLIBC_2\.([0-9]+)", file.read_bytes()))


def main(folder):
    """Writes a wheel with a manylinux tag into a folder."""
    _carry()
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    module = ["cargo", "rustc", "--release", "--locked", "-p", "offshoot-python", "--lib", "--features", "extension-module"]
    subprocess.run([*module, "--target-dir", str(target)], cwd=ROOT, check=True)
    needed = max(map(_glibc, (PACKAGE / "bin" / "offshoot", target / "release" / "lib_offshoot.so")))
    subprocess.run([
        sys.executable, "-m", "maturin", "build", "--release", "--strip", "--locked", "--target-dir", str(target),
        "--compatibility", f"manylinux_2_{needed}", "--manifest-path", str(PYTHON / "Cargo.toml"), "--out", folder,
    ], check=True)


if __name__ == "__main__":
    main(sys.argv[1])
