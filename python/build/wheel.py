"""Builds the wheel: first the `offshoot` command and the demo model, which it carries, then the module, by maturin.

The judge starts the command for its sandboxes, so it must be a program of its own. Cargo builds both from one library.
"""

import os
import pathlib
import shutil
import subprocess

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
