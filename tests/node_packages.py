"""Packages of npm for tests: fetched once, into the user's cache.

A test that needs them is skipped where Node.js, npm or its registry is missing, with the reason.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from rookery.actors.sandbox.python.build import cache_folder

__all__ = ["node_folder"]

FETCH_S = 120
FLAGS = ("--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts")


def node_folder(name: str, packages: tuple[str, ...], program: Path) -> Path:
    """A folder with a copy of the program and the packages, each ``NAME@VERSION``, that it uses."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("there is no Node.js here")
    folder = cache_folder(os.environ).with_name(name)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fetched = folder / "fetched"
        if not fetched.exists() or fetched.read_text() != " ".join(packages):
            _fetch(folder, packages)
            fetched.write_text(" ".join(packages))
        copy = folder / f".{program.name}.{os.getpid()}"
        shutil.copy(program, copy)
        copy.replace(folder / program.name)  # Another test may be about to read it.
    return folder


def _fetch(folder: Path, packages: tuple[str, ...]) -> None:
    command = ["npm", "install", *FLAGS, "--fetch-retries=1", "--prefix", str(folder), *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("the npm registry does not answer")
    if done.returncode:
        pytest.skip(f"npm has no packages for us: {done.stderr[-300:]}")
