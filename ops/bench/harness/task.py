"""The task of a bench's process, as it is passed on the command line."""

from __future__ import annotations

import msgspec

from rookery.ops.bench.harness.result_rows import Sync
from rookery.ops.config import Driver

__all__ = ["Task", "command_id"]


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One cell: one kind of load, from start to the last answer."""

    kind: str = ""
    """The kind of load; a node needs none."""
    url: str
    """For nodes, for what reads or writes facts as they do, and for commands of the benches' own
    family."""
    client_url: str
    """For clients of the realm."""
    admin_url: str
    """For the baselines: without limits."""
    sync: Sync
    count: int = 0
    window: int = 1
    """Messages in flight at any time."""
    entities: int = 1_000
    """Used in turn, beginning with number ``first``."""
    first: int = 0
    driver: Driver = "outside"
    """A node's driver: its own sandbox, or a client outside."""
    cell: str = ""
    """The prefix of the ids of the cell's commands."""
    seconds_max: float = 20.0
    """The load generator sends nothing after so long."""


def command_id(cell: str, number: int) -> str:
    """As long as a client's UUID, and recognisable in the journal."""
    return f"{cell}-{number:0{35 - len(cell)}}"
