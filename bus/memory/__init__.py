"""The bus in memory: the same contracts as JetStream's, in one process and without a disk."""

from __future__ import annotations

from rookery.bus.memory.bus import MemoryBus, MemoryServer

__all__ = ["MemoryBus", "MemoryServer"]
