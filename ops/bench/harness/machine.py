"""The facts needed to judge a figure: the machine, its load, the versions, and the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from tempfile import gettempdir
from typing import Any

from rookery.bus.server import find_server

__all__ = ["HISTORY", "current_commit", "describe_machine"]

HISTORY = "ops/bench/history.jsonl"
"""The file of records in a checkout; a record of the commit does not count as a change of it."""
_CHECKOUT = Path(__file__).resolve().parents[3]
_SHORT = 9
_PACKAGES = ("rookery", "nats-py", "msgspec", "pykka", "wasmtime")


def describe_machine(load_before: tuple[float, float, float]) -> dict[str, Any]:
    """What the figures were measured on; ``load_before`` is the load average at the start."""
    output = subprocess.run(
        [find_server(), "--version"], capture_output=True, text=True, check=True
    )
    return {
        "load_average_before": load_before,
        "load_average_after": os.getloadavg(),
        "processors": os.cpu_count(),
        "platform": platform.platform(),
        "store": gettempdir(),
        "versions": {
            "python": platform.python_version(),
            "nats-server": output.stdout.strip().rpartition(" ")[2],
            **{package: version(package) for package in _PACKAGES},
        },
    }


def current_commit() -> str:
    """The commit of this checkout, with ``+`` if files differ from it; else the release."""
    if not (_CHECKOUT / ".git").exists():
        return version("rookery")
    commit = _git("rev-parse", "HEAD")[:_SHORT]
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{HISTORY}")
    return f"{commit}+" if changed else commit


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(_CHECKOUT), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
