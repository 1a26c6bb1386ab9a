"""Packages of npm and PyPI for tests: fetched once, into the user's cache.

A test that needs them is skipped where Node.js, npm, pip or its registry is missing, with the
reason.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rookery.actors.sandbox.python.build import cache_folder

__all__ = ["node_folder", "python_folder"]

FETCH_S = 120
FLAGS = ("--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts")


def node_folder(name: str, packages: tuple[str, ...], program: Path | None = None) -> Path:
    """A folder with the packages, each ``NAME@VERSION``, and a copy of the program that uses
    them."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("there is no Node.js here")
    with _fetched_folder(name, packages, _fetch) as folder:
        if program is not None:
            copy = folder / f".{program.name}.{os.getpid()}"
            shutil.copy(program, copy)
            copy.replace(folder / program.name)  # Another test may be about to read it.
    return folder


def python_folder(name: str, packages: tuple[str, ...]) -> Path:
    """An environment of Python with the packages, each ``NAME==VERSION``; programs are in
    ``bin``."""
    with _fetched_folder(name, packages, _install) as folder:
        return folder


@contextmanager
def _fetched_folder(
    name: str, packages: tuple[str, ...], fetch: Callable[[Path, tuple[str, ...]], None]
) -> Iterator[Path]:
    folder = cache_folder(os.environ).with_name(name)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        fetched = folder / "fetched"
        if not fetched.exists() or fetched.read_text() != " ".join(packages):
            fetch(folder, packages)
            fetched.write_text(" ".join(packages))
        yield folder


def _install(folder: Path, packages: tuple[str, ...]) -> None:
    venv.create(folder, clear=False, with_pip=True)
    command = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("the registry of Python packages does not answer")
    if done.returncode:
        pytest.skip(f"pip has no packages for us: {done.stderr[-300:]}")


def _fetch(folder: Path, packages: tuple[str, ...]) -> None:
    command = ["npm", "install", *FLAGS, "--fetch-retries=1", "--prefix", str(folder), *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("the npm registry does not answer")
    if done.returncode:
        pytest.skip(f"npm has no packages for us: {done.stderr[-300:]}")
