"""Snapshots in memory: the twin of ``rookery.bus.storage.stores``."""

from __future__ import annotations

from rookery.bus.ports import Snapshot
from rookery.schemas.envelope import EntityId

__all__ = ["MemorySnapshots"]


class MemorySnapshots:
    """``Snapshots`` in a dictionary."""

    def __init__(self) -> None:
        self._newest: dict[EntityId, tuple[int, Snapshot]] = {}

    async def save(self, entity: EntityId, schema: int, snapshot: Snapshot) -> None:
        stored = self._newest.get(entity)
        if stored is None or stored[1].sequence <= snapshot.sequence:
            self._newest[entity] = schema, snapshot

    async def load(self, entity: EntityId, schema: int) -> Snapshot | None:
        stored = self._newest.get(entity)
        return stored[1] if stored is not None and stored[0] == schema else None
