"""Snapshots in memory: the twin of ``rookery.bus.storage.stores``."""

from __future__ import annotations

from rookery.bus.ports import EntitySnapshot
from rookery.schemas.envelope import EntityId

__all__ = ["MemoryEntitySnapshots"]


class MemoryEntitySnapshots:
    """``EntitySnapshots`` in a dictionary."""

    def __init__(self) -> None:
        self._newest: dict[EntityId, tuple[int, EntitySnapshot]] = {}

    async def save(self, entity: EntityId, schema: int, snapshot: EntitySnapshot) -> None:
        stored = self._newest.get(entity)
        if stored is None or stored[1].sequence <= snapshot.sequence:
            self._newest[entity] = schema, snapshot

    async def load(self, entity: EntityId, schema: int) -> EntitySnapshot | None:
        stored = self._newest.get(entity)
        return stored[1] if stored is not None and stored[0] == schema else None
