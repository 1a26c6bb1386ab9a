"""Blobs: bytes named by their SHA3-256, in messages of at most half a mebibyte.

Chunk ``n`` of a blob has the key ``<digest>.<n>``. Chunk 0 has the number of chunks and is written
after all others are acknowledged: without it the blob does not exist, and another put writes the
same chunks to the same keys. nats-py's object store is not used, because its push consumer stalls
after a drop and for 20 s after a restart, and chunks of a writer that died stay for ever.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from typing import Final

from rookery.bus.nats import header_value
from rookery.bus.ports import BLOB_BYTES_MAX
from rookery.bus.storage.bucket import Bucket
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Failed, Refused

__all__ = [
    "CHUNK_BYTES_MAX",
    "JetStreamBlobs",
    "blob_not_found",
    "check_blob",
    "verify_blob",
]

CHUNK_BYTES_MAX: Final = 512 << 10

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_CHUNKS = "Rookery-Chunks"
_CHUNKS_IN_FLIGHT = 8
"""Four mebibytes in flight: enough to saturate the disk, little enough for other traffic."""


class JetStreamBlobs:
    """Port ``Blobs`` in a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket
        self.spec = bucket.spec(persist_mode=None)

    async def put(self, data: bytes, bytes_max: int = BLOB_BYTES_MAX) -> str:
        check_blob(data, bytes_max)
        digest = await _digest(data)
        starts = range(0, max(len(data), 1), CHUNK_BYTES_MAX)
        if len(await self._bucket.keys(f"{digest}.*")) == len(starts):
            return digest

        async def write(number: int, headers: Sequence[tuple[str, str]] = ()) -> None:
            chunk = data[starts[number] : starts[number] + CHUNK_BYTES_MAX]
            await self._bucket.put(f"{digest}.{number}", chunk, headers=headers)

        for group in _groups(len(starts)):
            await asyncio.gather(*(write(number) for number in group))
        await write(0, headers=[(_CHUNKS, str(len(starts)))])
        return digest

    async def get(self, digest: str) -> bytes:
        first = await self._bucket.get_from_any(f"{digest}.0") if _DIGEST.match(digest) else None
        if first is None:
            raise blob_not_found(digest)
        chunks = [first.body]
        for group in _groups(int(header_value(first.header, _CHUNKS.encode()))):
            chunks += await asyncio.gather(*(self._chunk(digest, number) for number in group))
        return await verify_blob(b"".join(chunks), digest)

    async def _chunk(self, digest: str, number: int) -> bytes:
        entry = await self._bucket.get_from_any(f"{digest}.{number}")
        return b"" if entry is None else entry.body


def check_blob(data: bytes, bytes_max: int) -> None:
    """Refuse data above the limit of a blob."""
    if len(data) > bytes_max:
        raise Refused(
            "PAYLOAD_TOO_LARGE",
            f"the blob has {len(data)} bytes, the limit is {bytes_max}",
        )


def blob_not_found(digest: str) -> Failed:
    return Failed("BLOB_NOT_FOUND", f"no blob has the digest {digest[:80]!r}")


async def verify_blob(data: bytes, digest: str) -> bytes:
    """``data``, after a check against ``digest``."""
    if await _digest(data) != digest:
        raise Failed("BLOB_CORRUPT", f"the {len(data)} bytes of blob {digest} have another digest")
    return data


async def _digest(data: bytes) -> str:
    """Large bytes are digested outside of the loop: 64 MiB would block it for 130 ms."""
    if len(data) <= CHUNK_BYTES_MAX:
        return digest_bytes(data)
    return await asyncio.to_thread(digest_bytes, data)


def _groups(count: int) -> Iterator[range]:
    """The chunks after the first, in groups that are sent together."""
    for start in range(1, count, _CHUNKS_IN_FLIGHT):
        yield range(start, min(start + _CHUNKS_IN_FLIGHT, count))
