"""What views have folded, kept in parts: a shortcut past the journal, never the truth.

One head says which parts count; what it says is its writer's business. A part never changes: it is
written under a name of its own before a head names it, and removed after the head that has stopped
naming it. So a writer that dies leaves the old head whole, of two writers one loses and harms
nothing, and what they leave behind goes with the next head.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from rookery.bus.clock import entropy
from rookery.bus.storage.blobs import JetStreamBlobs
from rookery.bus.storage.bucket import Bucket

__all__ = ["SALT_BYTES", "CheckpointHead", "JetStreamCheckpointStore"]

SALT_BYTES: Final = 16
"""Before each part, so that no two are ever the same: none is removed that somebody else wrote."""
_HEAD: Final = "head"


class CheckpointHead(NamedTuple):
    """The head as it stands."""

    revision: int
    """Grows with every head."""
    body: bytes


class JetStreamCheckpointStore:
    """In a bucket: the head under a key of its own, the parts as blobs are."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket, self._blobs = bucket, JetStreamBlobs(bucket)
        self.spec = bucket.spec()

    async def head(self) -> CheckpointHead | None:
        """What stands; ``None`` if nothing ever did."""
        entry = await self._bucket.get_from_leader(_HEAD)
        return None if entry is None else CheckpointHead(entry.sequence, entry.body)

    async def put(self, part: bytes) -> str:
        """Keep a part until the next head, and as long as heads name it; its name."""
        return await self._blobs.put(entropy(SALT_BYTES) + part)

    async def get(self, name: str) -> bytes:
        """The part; ``Failed`` BLOB_NOT_FOUND or BLOB_CORRUPT."""
        return (await self._blobs.get(name))[SALT_BYTES:]

    async def replace(self, head: bytes, names: Collection[str], *, after: int) -> bool:
        """Have ``head``, which names these parts, stand in place of revision ``after`` (0: none);
        ``False`` if something else stands there. Parts it does not name are gone then."""
        revision = await self._bucket.put(_HEAD, head, expected=after)
        if revision is None:
            return False
        for key in await self._bucket.keys("*.*"):
            if key.partition(".")[0] not in names:
                await self._bucket.remove(key, before=revision)
        return True
