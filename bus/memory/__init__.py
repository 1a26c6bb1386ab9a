"""The bus in memory: JetStream's contracts in one process, without a disk."""

from __future__ import annotations

from rookery.bus.memory.bus import MemoryBus, MemoryServer
from rookery.bus.memory.journal import MemoryJournal, MemoryLog

__all__ = [
    "MemoryBus",
    "MemoryJournal",
    "MemoryLog",
    "MemoryServer",
]
