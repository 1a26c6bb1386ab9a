"""What a bench asks of one of its processes, as it travels on the command line."""

from __future__ import annotations

import msgspec

from rookery.ops.bench.harness.result_rows import Sync
from rookery.ops.config import Driver

__all__ = ["Task", "command_id"]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One cell: one kind of load, from start to the last answer."""

    kind: str = ""
    """Of load; a node needs none."""
    url: str
    sync: Sync
    count: int = 0
    window: int = 1
    """Messages under way at any time."""
    entities: int = 1_000
    """They are taken in turn, beginning with number ``first``."""
    first: int = 0
    driver: Driver = "outside"
    """Of a node: whether it takes the steps of its runs itself."""
    cell: str = ""
    """Begins the ids of the cell's commands."""
    seconds_max: float = 20.0
    """After so long nothing more is sent."""


def command_id(cell: str, number: int) -> str:
    """As long as the UUIDs clients send, and known to whoever reads the journal afterwards."""
    return f"{cell}-{number:0{35 - len(cell)}}"
