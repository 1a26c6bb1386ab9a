"""Blobs in memory: the twin of ``rookery.bus.storage.blobs``, shared by all buses of a memory
server."""

from __future__ import annotations

from rookery.bus.ports import BLOB_BYTES_MAX
from rookery.bus.storage.blobs import blob_not_found, check_blob, verify_blob
from rookery.schemas.digest import digest_bytes

__all__ = ["MemoryBlobs"]


class MemoryBlobs:
    """``Blobs`` in a dictionary."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}

    async def put(self, data: bytes, bytes_max: int = BLOB_BYTES_MAX) -> str:
        check_blob(data, bytes_max)
        digest = digest_bytes(data)
        self.stored.setdefault(digest, bytes(data))
        return digest

    async def get(self, digest: str) -> bytes:
        if digest not in self.stored:
            raise blob_not_found(digest)
        return await verify_blob(self.stored[digest], digest)
