"""A shelf in memory: the twin of ``rookery.bus.storage.checkpoints``."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count

from rookery.bus.memory.blobs import MemoryBlobs
from rookery.bus.storage.checkpoints import CheckpointHead

__all__ = ["MemoryCheckpointStore"]


class MemoryCheckpointStore:
    """In a dictionary; a part's number keeps it apart from every other one."""

    def __init__(self) -> None:
        self._blobs = MemoryBlobs()
        self.current_head: CheckpointHead | None = None
        self._numbers = count(1)

    @property
    def parts(self) -> dict[str, bytes]:
        """What is kept, as it is kept."""
        return self._blobs.stored

    async def head(self) -> CheckpointHead | None:
        return self.current_head

    async def put(self, part: bytes) -> str:
        return await self._blobs.put(self._salt() + part)

    async def get(self, name: str) -> bytes:
        return (await self._blobs.get(name))[8:]

    async def replace(self, head: bytes, names: Collection[str], *, after: int) -> bool:
        revision = 0 if self.current_head is None else self.current_head.revision
        if revision != after:
            return False
        self.current_head = CheckpointHead(revision + 1, head)
        for name in self.parts.keys() - set(names):
            del self.parts[name]
        return True

    def _salt(self) -> bytes:
        return next(self._numbers).to_bytes(8)
