"""How many slots of each tool a process uses: numbers in a file that outlives a killed process.

The process writes them before it makes a call and after the call has ended; the supervisor reads
them when the process has ended, and holds back these slots of tools on workers.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

__all__ = ["SlotUsage", "read_slot_usage"]

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
