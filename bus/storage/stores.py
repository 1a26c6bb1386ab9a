"""Buckets of entity snapshots, of a realm's secrets, and of projections' checkpoints.

Entity snapshots: one message each; large states are blobs. An unreadable snapshot counts as none,
and the entity is folded from its facts.

Secrets: shared by a realm's nodes, one message a generation, sealed by their writers
(``credentials/sealed_secrets``). Only the role ``node`` reaches them.

Checkpoints: a head names its parts. A part never changes: it is written under a name of its own
before a head names it, and removed after the head no longer does. If a writer dies, the old head is
complete; of two writers one loses without damage, and the next head removes their leftovers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from rookery.bus.clock import entropy
from rookery.bus.nats.batch_client import header_value
from rookery.bus.ports import Blobs, EntitySnapshot
from rookery.bus.ports.storage import SecretEntry
from rookery.bus.storage.blobs import JetStreamBlobs
from rookery.bus.storage.bucket import Bucket, BucketEntry
from rookery.bus.streams import StreamSpec
from rookery.bus.subjects import decode_token, encode_token
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed

__all__ = [
    "INLINE_BYTES_MAX",
    "SALT_BYTES",
    "CheckpointHead",
    "JetStreamCheckpointStore",
    "JetStreamEntitySnapshots",
    "JetStreamSecrets",
]

INLINE_BYTES_MAX: Final = 512 << 10

_SCHEMA, _SEQUENCE, _BLOB = "Rookery-Schema", "Rookery-Sequence", "Rookery-Blob"


class JetStreamEntitySnapshots:
    """Port ``EntitySnapshots`` in a bucket."""

    def __init__(self, bucket: Bucket, blobs: Blobs) -> None:
        self._bucket, self._blobs = bucket, blobs

    @property
    def spec(self) -> StreamSpec:
        return self._bucket.spec()

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


class JetStreamSecrets:
    """Port ``Secrets`` in a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    @property
    def spec(self) -> StreamSpec:
        return self._bucket.spec()

    async def put(self, name: str, generation: int, sealed: bytes, *, after: int = 0) -> bool:
        key = _secret_key(name, generation)
        return await self._bucket.put(key, sealed, expected=after) is not None

    async def get(self, name: str, generation: int) -> SecretEntry | None:
        entry = await self._bucket.get_from_leader(_secret_key(name, generation))
        return None if entry is None else SecretEntry(entry.sequence, entry.body)

    async def delete(self, name: str, generation: int) -> None:
        key = _secret_key(name, generation)
        entry = await self._bucket.get_from_leader(key)
        if entry is not None:
            await self._bucket.remove(key, before=entry.sequence + 1)

    async def generations(self, name: str) -> Sequence[int]:
        keys = await self._bucket.keys(f"{encode_token(name)}.*")
        return sorted(int(key.rpartition(".")[2]) for key in keys)

    async def list(self) -> list[tuple[str, int]]:
        keys = [key.partition(".") for key in await self._bucket.keys(">")]
        return sorted((decode_token(name), int(number or 0)) for name, _, number in keys)


def _secret_key(name: str, generation: int) -> str:
    """Older versions stored a secret under its name alone."""
    return f"{encode_token(name)}.{generation}" if generation else encode_token(name)


SALT_BYTES: Final = 16
"""Prefix of each part, which makes it unique: a writer never removes another writer's part."""
_HEAD: Final = "head"


class CheckpointHead(NamedTuple):
    """The current head."""

    revision: int
    """Grows with every head."""
    body: bytes


class JetStreamCheckpointStore:
    """Checkpoints in a bucket: the head under its own key, the parts stored like blobs."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket, self._blobs = bucket, JetStreamBlobs(bucket)

    @property
    def spec(self) -> StreamSpec:
        return self._bucket.spec()

    async def head(self) -> CheckpointHead | None:
        """The current head; ``None`` before the first."""
        entry = await self._bucket.get_from_leader(_HEAD)
        return None if entry is None else CheckpointHead(entry.sequence, entry.body)

    async def put(self, part: bytes) -> str:
        """Store a part until the next head, and while heads name it; return its name."""
        return await self._blobs.put(entropy(SALT_BYTES) + part)

    async def get(self, name: str) -> bytes:
        """The part; ``Failed`` BLOB_NOT_FOUND or BLOB_CORRUPT."""
        return (await self._blobs.get(name))[SALT_BYTES:]

    async def replace(self, head: bytes, names: Collection[str], *, after: int) -> bool:
        """Replace the head of revision ``after`` (0: none) by ``head``, which names these parts,
        and remove all other parts. ``False`` if the current head has another revision."""
        revision = await self._bucket.put(_HEAD, head, expected=after)
        if revision is None:
            return False
        for key in await self._bucket.keys("*.*"):
            if key.partition(".")[0] not in names:
                await self._bucket.remove(key, before=revision)
        return True
