"""The bus in memory: JetStream's contracts in one process, without a disk."""

from __future__ import annotations

from rookery.bus.memory.bus import MemoryBus, MemoryServer

__all__ = ["MemoryBus", "MemoryServer"]
