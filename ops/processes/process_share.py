"""Which of the node's processes this one is, its share of limits, and the slots it uses."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from rookery.actors.slot_limits import DeclaredLimit, SlotNotice, SlotSupply
from rookery.ops.server import RealmServer

__all__ = [
    "WHOLE_NODE",
    "ProcessShare",
    "SlotLink",
    "SlotUsage",
    "read_slot_usage",
]

# --- process share --------------------------------------------------------------------------------

# Memory is divided, and so is the quota of runs in flight, by partitions. The supervisor allocates
# the slots of calls, because one slot cannot be divided.


class SlotLink(SlotSupply, Protocol):
    """The allocator of slots, as a process reaches it."""

    def open(
        self, declared: Sequence[DeclaredLimit], on_notice: Callable[[SlotNotice], None]
    ) -> None:
        """Declare this process's tools. ``on_notice`` is called on a thread of the link."""


@dataclass(frozen=True, kw_only=True)
class ProcessShare:
    """One of ``count`` processes of a node."""

    number: int = 1
    count: int = 1
    server: RealmServer | None = None
    """The server to use; ``None`` for a process that finds or starts its own."""
    is_embedded: bool = False
    """Whether the supervisor runs that server."""
    slots: SlotLink | None = None
    """``None``: this process is the whole node."""

    def name_of(self, node: str) -> str:
        """The name of this process: its node's name, and its number if there are several."""
        return node if self.slots is None else f"{node}.{self.number}"

    def divide(self, total: int) -> int:
        """This process's part of a limit of the node."""
        return total // self.count


WHOLE_NODE: Final = ProcessShare()


# --- slot usage -----------------------------------------------------------------------------------

# How many slots of each tool a process uses: numbers in a file that outlives a killed process.
#
# The process writes them before it makes a call and after the call has ended; the supervisor reads
# them when the process has ended, and holds back these slots of tools on workers.


_NUMBER: Final = struct.Struct("=I")


class SlotUsage:
    """The file of one process, as the process writes it."""

    def __init__(self, folder: Path, number: int, tools: Sequence[str]) -> None:
        size = max(1, len(tools)) * _NUMBER.size
        with _path(folder, number).open("w+b") as file:
            file.truncate(size)
            self._memory = mmap.mmap(file.fileno(), size)
        self._offsets = {tool: index * _NUMBER.size for index, tool in enumerate(tools)}

    def record(self, tool: str, used: int) -> None:
        """The process uses so many slots from now on."""
        _NUMBER.pack_into(self._memory, self._offsets[tool], used)


def read_slot_usage(folder: Path, number: int, tools: Sequence[str]) -> Mapping[str, int]:
    """What an ended process used last; nothing, if it had not begun."""
    try:
        written = _path(folder, number).read_bytes()
    except FileNotFoundError:
        return {}
    return {tool: used for tool, (used,) in zip(tools, _NUMBER.iter_unpack(written), strict=False)}


def _path(folder: Path, number: int) -> Path:
    return folder / f"slots_{number}"
