"""Blobs: bytes named by their SHA3-256; and memory images, which older versions had among them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final

import msgspec

from rookery.bus.nats.batch_client import header_value
from rookery.bus.ports import BLOB_BYTES_MAX, BlobMark
from rookery.bus.storage.bucket import Bucket
from rookery.bus.streams import StreamSpec
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.run import SNAPSHOT_BYTES_MAX

__all__ = [
    "CHUNKS",
    "CHUNKS_MAX",
    "CHUNK_BYTES_MAX",
    "JetStreamBlobs",
    "blob_not_found",
    "check_blob",
    "chunk_count",
    "chunk_groups",
    "digest_of",
    "is_digest",
    "move_images",
    "verify_blob",
]

# --- blobs ----------------------------------------------------------------------------------------

# Blobs: bytes named by their SHA3-256, in messages of at most half a mebibyte.
#
# Chunk ``n`` of a blob has the key ``<digest>.<n>``. Chunk 0 has the number of chunks and is
# written after all others are acknowledged: without it the blob does not exist, and another put
# writes the same chunks to the same keys. The key ``<digest>.mark`` has a mark, a pin or an
# unfinished deletion: they replace each other by compare-and-swap, so a blob is never both pinned
# and deleted. nats-py's object store is not used, because its push consumer stalls after a drop and
# for 20 s after a restart, and chunks of a writer that died stay for ever.


CHUNK_BYTES_MAX: Final = 512 << 10

CHUNKS_MAX: Final = -(-SNAPSHOT_BYTES_MAX // CHUNK_BYTES_MAX)

CHUNKS: Final = "Rookery-Chunks"
"""Header of chunk 0: how many chunks the blob has."""

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")
_CHUNKS_IN_FLIGHT = 8
"""Four mebibytes in flight: enough to saturate the disk, little enough for other traffic."""

_EVERY: Final = (1 << 63) - 1
"""Above the sequence of every chunk."""


class _State(Enum):
    NONE = "none"
    MARKED = "marked"
    PINNED = "pinned"
    DELETING = "deleting"


class _Note(msgspec.Struct, frozen=True):
    """What is noted of a blob beside its chunks."""

    state: _State = _State.NONE
    owner: str = ""
    at_ms: int = 0


class JetStreamBlobs:
    """Port ``Blobs`` in a bucket."""

    def __init__(self, bucket: Bucket) -> None:
        self._bucket = bucket

    @property
    def spec(self) -> StreamSpec:
        return self._bucket.spec(persist_mode=None)

    async def put(self, data: bytes, bytes_max: int = BLOB_BYTES_MAX) -> str:
        check_blob(data, bytes_max)
        digest = await digest_of(data)
        chunks = await self._bucket.keys(f"{digest}.*")
        if _mark_key(digest) in chunks:
            chunks.remove(_mark_key(digest))
        if len(chunks) != _count(data):
            await self._write(digest, data)
        return digest

    async def _write(self, digest: str, data: bytes) -> None:
        starts = range(0, max(len(data), 1), CHUNK_BYTES_MAX)

        async def write(number: int, headers: Sequence[tuple[str, str]] = ()) -> None:
            chunk = data[starts[number] : starts[number] + CHUNK_BYTES_MAX]
            await self._bucket.put(f"{digest}.{number}", chunk, headers=headers)

        for group in chunk_groups(len(starts)):
            await asyncio.gather(*(write(number) for number in group))
        await write(0, headers=[(CHUNKS, str(len(starts)))])

    async def get(self, digest: str) -> bytes:
        first = await self._bucket.get_from_any(f"{digest}.0") if is_digest(digest) else None
        if first is None:
            raise blob_not_found(digest)
        chunks = [first.body]
        for group in chunk_groups(chunk_count(first.header, digest)):
            chunks += await asyncio.gather(*(self._chunk(digest, number) for number in group))
        return await verify_blob(b"".join(chunks), digest)

    async def exists(self, digest: str) -> bool:
        return is_digest(digest) and bool(await self._bucket.keys(f"{digest}.0"))

    # --- marks, pins and deletions ----------------------------------------------------------------

    async def put_marked(
        self, data: bytes, owner: str, at_ms: int, bytes_max: int = BLOB_BYTES_MAX
    ) -> str:
        check_blob(data, bytes_max)
        digest = await digest_of(data)
        while True:
            sequence, note = await self._read_note(digest)
            if note.state is _State.PINNED:
                return await self.put(data, bytes_max)
            marked = _Note(_State.MARKED, owner, at_ms)
            if await self._set_note(digest, marked, sequence) is not None:
                break
        if note.state is not _State.DELETING:
            return await self.put(data, bytes_max)
        await self._write(digest, data)  # The deletion may go on, and spares later chunks.
        return digest

    async def marks(self) -> list[BlobMark]:
        digests = [key.partition(".")[0] for key in await self._bucket.keys(_mark_key("*"))]
        marks = []
        for digest in digests:
            _, note = await self._read_note(digest)
            if note.state in (_State.MARKED, _State.DELETING):
                marks.append(BlobMark(digest, note.owner, note.at_ms))
        return marks

    async def unmark(self, digest: str) -> None:
        sequence, note = await self._read_note(digest)
        if note.state is _State.MARKED:
            await self._bucket.remove(_mark_key(digest), before=sequence + 1)

    async def pin(self, digest: str) -> bool:
        while True:
            sequence, note = await self._read_note(digest)
            if note.state is _State.DELETING:
                return False
            pinned = _Note(_State.PINNED)
            if note == pinned or await self._set_note(digest, pinned, sequence) is not None:
                break
        if await self.exists(digest):
            return True
        sequence, _ = await self._read_note(digest)
        await self._bucket.remove(_mark_key(digest), before=sequence + 1)
        return False

    async def delete(self, digest: str) -> bool:
        while True:
            sequence, note = await self._read_note(digest)
            if note.state is _State.PINNED:
                return False
            deleting = _Note(_State.DELETING, note.owner, note.at_ms)
            begun = await self._set_note(digest, deleting, sequence)
            if begun is not None:
                break
        await self._bucket.remove(f"{digest}.0", before=begun)
        for key in await self._bucket.keys(f"{digest}.*"):
            if key != _mark_key(digest):
                await self._bucket.remove(key, before=begun)
        await self._bucket.remove(_mark_key(digest), before=begun + 1)
        return True

    # --- the move of blobs to another bucket ------------------------------------------------------

    async def digests(self) -> list[str]:
        """The digests of all complete blobs."""
        return [key.partition(".")[0] for key in await self._bucket.keys("*.0")]

    async def start_of(self, digest: str) -> bytes:
        """The first chunk of a blob, empty if there is none."""
        return await self._chunk(digest, 0)

    async def copy(self, digest: str, source: JetStreamBlobs) -> None:
        """Store a blob of another bucket, with its mark or pin."""
        _, note = await source._read_note(digest)
        if note.state is not _State.NONE:
            sequence, _ = await self._read_note(digest)
            await self._set_note(digest, note, sequence)
        await self.put(await source.get(digest), SNAPSHOT_BYTES_MAX)

    async def remove(self, digest: str) -> None:
        """Remove a blob and its mark or pin."""
        sequence, _ = await self._read_note(digest)
        await self._bucket.remove(f"{digest}.0", before=_EVERY)
        for key in await self._bucket.keys(f"{digest}.*"):
            if key != _mark_key(digest):
                await self._bucket.remove(key, before=_EVERY)
        await self._bucket.remove(_mark_key(digest), before=sequence + 1)

    async def _read_note(self, digest: str) -> tuple[int, _Note]:
        """The sequence and content of the blob's note."""
        entry = await self._bucket.get_from_leader(_mark_key(digest))
        if entry is None:
            return 0, _Note()
        return entry.sequence, msgspec.json.decode(entry.body, type=_Note)

    async def _set_note(self, digest: str, note: _Note, sequence: int) -> int | None:
        """Replace the note of this sequence; ``None`` if it has changed."""
        return await self._bucket.put(
            _mark_key(digest), msgspec.json.encode(note), expected=sequence
        )

    async def _chunk(self, digest: str, number: int) -> bytes:
        entry = await self._bucket.get_from_any(f"{digest}.{number}")
        return b"" if entry is None else entry.body


def is_digest(text: str) -> bool:
    """Whether the text can name a blob."""
    return _DIGEST.match(text) is not None


def _mark_key(digest: str) -> str:
    return f"{digest}.mark"


def _count(data: bytes) -> int:
    """How many chunks the data has."""
    return max(1, -(-len(data) // CHUNK_BYTES_MAX))


def chunk_count(header: bytes, digest: str) -> int:
    """How many chunks the blob has, by the header of its chunk 0."""
    count = header_value(header, CHUNKS.encode())
    if not count.isdecimal() or len(count) > 6 or not 0 < int(count) <= CHUNKS_MAX:
        raise Failed("BLOB_CORRUPT", f"blob {digest} says that it has {count[:20]!r} chunks")
    return int(count)


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
    if await digest_of(data) != digest:
        raise Failed("BLOB_CORRUPT", f"the {len(data)} bytes of blob {digest} have another digest")
    return data


async def digest_of(data: bytes) -> str:
    """Large bytes are digested outside of the loop: 64 MiB would block it for 130 ms."""
    if len(data) <= CHUNK_BYTES_MAX:
        return digest_bytes(data)
    return await asyncio.to_thread(digest_bytes, data)


def chunk_groups(count: int) -> Iterator[range]:
    """The chunks after the first, in groups that are sent together."""
    for start in range(1, count, _CHUNKS_IN_FLIGHT):
        yield range(start, min(start + _CHUNKS_IN_FLIGHT, count))


# --- images ---------------------------------------------------------------------------------------

# The move of memory images out of the blobs, where realms of older versions have them.
#
# Images of sessions have a bucket of their own, because every client may read a blob.


IMAGE_START: Final = b"ROOKSNAP"
"""With these bytes every image begins, and no other blob."""


async def move_images(blobs: JetStreamBlobs, images: JetStreamBlobs) -> int:
    """Move the images of a realm of an older version out of its blobs; returns their number.

    An image is copied with its mark or pin before it is removed, so the move may be interrupted and
    repeated at any point. No node of the realm may run.
    """
    moved = 0
    for digest in await blobs.digests():
        if (await blobs.start_of(digest)).startswith(IMAGE_START):
            await images.copy(digest, blobs)
            await blobs.remove(digest)
            moved += 1
    return moved
