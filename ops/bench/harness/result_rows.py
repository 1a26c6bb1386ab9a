"""The figures of a bench, their verdicts, and the machine they were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from tempfile import gettempdir
from typing import Any, Literal

import msgspec

from rookery.bus.server import find_server

__all__ = [
    "HISTORY",
    "Figure",
    "ResultRow",
    "Round",
    "Sync",
    "current_commit",
    "describe_machine",
    "percentile",
    "result_rows",
]

# --- machine --------------------------------------------------------------------------------------

# The facts needed to judge a figure: the machine, its load, the versions, and the commit.


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


# --- result rows ----------------------------------------------------------------------------------

# The figures of a bench and their results: medians, ratios and verdicts.
#
# A ratio is computed within a round, where both sides had the same machine; the result is the
# median of the ratios.


Sync = Literal["always", "default"]
"""``always``: the server writes a message to disk before it acks it."""

Round = Mapping[str, float]
"""The values of one round, by the name of the figure."""


class Figure(msgspec.Struct, frozen=True):
    """One figure of a bench; its bound is on the ratio, or on the value if it has no ratio."""

    name: str
    unit: str
    ratio_to: str = ""
    """The name of another figure of the same bench."""
    at_least: float | None = None
    at_most: float | None = None

    @property
    def target(self) -> str:
        """The bound as text; empty if there is none."""
        if self.at_least is not None:
            return f">= {self.at_least:g}"
        return "" if self.at_most is None else f"<= {self.at_most:g}"

    def met_by(self, figure: float) -> bool | None:
        """Whether a value meets the bound; ``None`` if there is none."""
        if self.at_least is not None:
            return figure >= self.at_least
        return None if self.at_most is None else figure <= self.at_most


class ResultRow(msgspec.Struct, frozen=True, kw_only=True):
    """One figure with its values."""

    bench: str
    sync: Sync
    name: str
    value: float
    """The median of the rounds; ``low`` and ``high`` are their extremes."""
    low: float
    high: float
    unit: str
    ratio_to: str | None
    ratio: float | None
    target: str | None
    met: bool | None


def result_rows(
    bench: str, sync: Sync, lines: Sequence[Figure], rounds: Sequence[Round]
) -> list[ResultRow]:
    """A row for each figure, from the values of the rounds."""
    return [_row(bench, sync, line, rounds) for line in lines]


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _row(bench: str, sync: Sync, line: Figure, rounds: Sequence[Round]) -> ResultRow:
    values = [measured[line.name] for measured in rounds]
    ratio = None
    if line.ratio_to:
        ratio = median(measured[line.name] / measured[line.ratio_to] for measured in rounds)
    return ResultRow(
        bench=bench,
        sync=sync,
        name=line.name,
        value=median(values),
        low=min(values),
        high=max(values),
        unit=line.unit,
        ratio_to=line.ratio_to or None,
        ratio=ratio,
        target=line.target or None,
        met=line.met_by(median(values) if ratio is None else ratio),
    )
