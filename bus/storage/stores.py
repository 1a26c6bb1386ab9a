"""States of entities, one message each: a shortcut past the journal, never the truth.

Large states stand in the blob store and are referred to. A snapshot that cannot be read is no
snapshot: the entity is folded from its facts instead.
"""

from __future__ import annotations

from typing import Final

from rookery.bus.nats.connection import header_value
from rookery.bus.ports import Blobs, EntitySnapshot
from rookery.bus.storage.bucket import Bucket, BucketEntry
from rookery.bus.subjects import encode_token
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed

__all__ = ["INLINE_BYTES_MAX", "JetStreamEntitySnapshots"]

INLINE_BYTES_MAX: Final = 512 << 10

_SCHEMA, _SEQUENCE, _BLOB = "Rookery-Schema", "Rookery-Sequence", "Rookery-Blob"


class JetStreamEntitySnapshots:
    """``EntitySnapshots`` in a bucket."""

    def __init__(self, bucket: Bucket, blobs: Blobs) -> None:
        self._bucket, self._blobs = bucket, blobs
        self.spec = bucket.spec()

    async def save(self, entity: EntityId, schema: int, snapshot: EntitySnapshot) -> None:
        key = _key(entity)
        headers = [(_SCHEMA, str(schema)), (_SEQUENCE, str(snapshot.sequence))]
        body = snapshot.body
        if len(body) > INLINE_BYTES_MAX:
            headers.append((_BLOB, await self._blobs.put(body)))
            body = b""
        while True:
            newest = await self._bucket.get_from_leader(key)
            if newest is not None and _number(newest, _SEQUENCE) > snapshot.sequence:
                return
            expected = newest.sequence if newest is not None else 0
            if await self._bucket.put(key, body, expected=expected, headers=headers) is not None:
                return

    async def load(self, entity: EntityId, schema: int) -> EntitySnapshot | None:
        entry = await self._bucket.get_from_any(_key(entity))
        if entry is None or _number(entry, _SCHEMA) != schema:
            return None
        digest = header_value(entry.header, _BLOB.encode())
        try:
            body = await self._blobs.get(digest) if digest else entry.body
        except Failed as failure:
            if failure.code in ("BLOB_NOT_FOUND", "BLOB_CORRUPT"):
                return None
            raise
        return EntitySnapshot(_number(entry, _SEQUENCE), body)


def _key(entity: EntityId) -> str:
    return f"{encode_token(entity.family)}.{encode_token(entity.key)}"


def _number(entry: BucketEntry, name: str) -> int:
    return int(header_value(entry.header, name.encode()) or 0)
