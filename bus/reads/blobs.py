"""Blobs as a client reads and stores them, through a node."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from typing import Any, Final, Literal, NamedTuple

import msgspec

from rookery.bus.clock import entropy
from rookery.bus.nats import MESSAGE_NOT_FOUND, Connection, Message, status_of
from rookery.bus.ports import BLOB_BYTES_MAX
from rookery.bus.reads.node_requests import NodeRequests
from rookery.bus.reads.queries import DONE
from rookery.bus.storage.blobs import (
    CHUNK_BYTES_MAX,
    blob_not_found,
    check_blob,
    chunk_count,
    chunk_groups,
    digest_of,
    is_digest,
    verify_blob,
)
from rookery.bus.subjects import Subjects
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Failed
from rookery.schemas.reads import ChunkQuery, UploadDone

__all__ = ["NodeBlobs"]

Source = Literal["any", "leader"]

_UPLOAD_BYTES: Final = 16
_PIECES_IN_FLIGHT: Final = 4
_DONE_PATIENCE_S: Final = 600.0
"""The node writes a whole image in this time."""


class _Chunk(NamedTuple):
    header: bytes
    body: bytes


class NodeBlobs:
    """Results and other values, or the memory images of sessions."""

    def __init__(
        self, connection: Connection, subjects: Subjects, kind: Literal["blobs", "images"] = "blobs"
    ) -> None:
        self._requests, self._subjects, self._kind = NodeRequests(connection), subjects, kind

    async def get(self, digest: str) -> bytes:
        """The bytes, checked against the digest; ``BLOB_NOT_FOUND`` or ``BLOB_CORRUPT``."""
        if not is_digest(digest):
            raise blob_not_found(digest)
        first = await self._chunk(digest, 0)
        if first is None:
            raise blob_not_found(digest)
        chunks = [first.body]
        for group in chunk_groups(chunk_count(first.header, digest)):
            chunks += await asyncio.gather(*(self._body(digest, number) for number in group))
        return await verify_blob(b"".join(chunks), digest)

    async def put(self, data: bytes, bytes_max: int = BLOB_BYTES_MAX) -> str:
        """Store ``data`` and return its digest."""
        check_blob(data, bytes_max)
        digest, upload = await digest_of(data), entropy(_UPLOAD_BYTES).hex()
        count = max(1, -(-len(data) // CHUNK_BYTES_MAX))

        async def send(number: int) -> None:
            piece = data[number * CHUNK_BYTES_MAX : (number + 1) * CHUNK_BYTES_MAX]
            await self._requests.ask(self._subjects.upload(self._kind, upload, number), piece)

        for start in range(0, count, _PIECES_IN_FLIGHT):
            group = range(start, min(start + _PIECES_IN_FLIGHT, count))
            await asyncio.gather(*(send(number) for number in group))
        await self._requests.ask(
            self._subjects.upload(self._kind, upload, DONE),
            encode_json(UploadDone(digest, count)),
            patience_s=_DONE_PATIENCE_S,
        )
        return digest

    async def _body(self, digest: str, number: int) -> bytes:
        chunk = await self._chunk(digest, number)
        return b"" if chunk is None else chunk.body

    async def _chunk(self, digest: str, number: int) -> _Chunk | None:
        """A replica may lag, so the leader is asked before a chunk counts as missing."""
        reply = await self._ask(digest, number, "any")
        if not status_of(reply):
            return _Chunk(reply.header, reply.body)
        reply = await self._ask(digest, number, "leader")
        answer = msgspec.json.decode(reply.body, type=dict[str, Any])
        if (error := answer.get("error")) is None:
            stored = answer["message"]
            return _Chunk(b64decode(stored.get("hdrs", "")), b64decode(stored.get("data", "")))
        if error.get("err_code") in MESSAGE_NOT_FOUND:
            return None
        raise Failed("SERVER_UNREACHABLE", f"the stream of the blobs does not answer: {error}")

    async def _ask(self, digest: str, number: int, source: Source) -> Message:
        subject = self._subjects.read_chunk(self._kind, digest, number)
        return await self._requests.ask(subject, encode_json(ChunkQuery(source)))
