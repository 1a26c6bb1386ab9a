"""The service by which clients store blobs: in pieces, which a node joins after the last one.

A piece waits in a bucket that only nodes use, under the random id of its upload, so any node takes
any piece. The node stores nothing under a digest before it has all pieces and has checked them, so
no client changes a chunk of a blob. The bucket has bounds, and the server removes abandoned pieces
after an hour.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from rookery.bus.commands.request_endpoint import error_message
from rookery.bus.nats import Connection, Message, Outgoing, Subscription
from rookery.bus.ports import BLOB_BYTES_MAX, Blobs, TaskSet
from rookery.bus.reads.queries import DONE, QUEUE, is_inbox
from rookery.bus.reads.service import check_chunk_number, decode_query
from rookery.bus.storage.blobs import CHUNK_BYTES_MAX
from rookery.bus.storage.bucket import Bucket
from rookery.bus.streams import StreamSpec
from rookery.bus.subjects import Subjects
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.reads import UploadDone
from rookery.schemas.run import SNAPSHOT_BYTES_MAX

__all__ = ["UploadService"]

log = logging.getLogger(__name__)

PIECES_WAITING_MAX: Final = 32
"""Pieces that this node has received and not yet stored: 16 MiB."""
STAGED_PIECES_MAX: Final = 8_192
"""Four gibibytes."""
_HOUR_NS: Final = 3_600 * 1_000_000_000
_HEADER_BYTES_MAX: Final = 8 << 10

_EVERY: Final = (1 << 63) - 1
"""Above the sequence of every piece."""

_UPLOAD: Final = re.compile(r"[0-9a-f]{32}\Z")
_upload_done = msgspec.json.Decoder(UploadDone).decode


class _Kind:
    """Blobs or images: where they are stored, and how large they may be."""

    def __init__(self, name: str, blobs: Blobs, bytes_max: int) -> None:
        self.name, self.blobs, self.bytes_max = name, blobs, bytes_max
        self.pieces_max = -(-bytes_max // CHUNK_BYTES_MAX)

    def key(self, upload: str, number: int | str) -> str:
        return f"{self.name}-{upload}.{number}"


class UploadService:
    """Created and used on the event loop of its connection."""

    def __init__(
        self,
        connection: Connection,
        subjects: Subjects,
        staged: Bucket,
        blobs: Blobs,
        images: Blobs,
    ) -> None:
        self._connection, self._subjects, self._staged = connection, subjects, staged
        self._kinds = (
            _Kind("blobs", blobs, BLOB_BYTES_MAX),
            _Kind("images", images, SNAPSHOT_BYTES_MAX),
        )
        self._subscriptions: list[Subscription] = []
        self._tasks = TaskSet()
        self._pieces_waiting = 0
        self._joining: set[str] = set()
        """Uploads whose pieces this node is joining, or is about to."""
        self._join_lock = asyncio.Lock()
        """One upload is in memory at a time."""

    @property
    def spec(self) -> StreamSpec:
        return self._staged.spec(
            max_age=_HOUR_NS,
            max_msgs=STAGED_PIECES_MAX,
            max_msg_size=CHUNK_BYTES_MAX + _HEADER_BYTES_MAX,
        )

    async def open(self) -> None:
        """Accept uploads from now on."""
        for kind in self._kinds:
            subject = self._subjects.upload(kind.name, "*", "*")
            handler = self._handler(kind)
            self._subscriptions.append(
                await self._connection.subscribe(subject, handler, queue=QUEUE)
            )

    async def close(self) -> None:
        """Leave further pieces to other nodes, which can also end an upload that has begun."""
        while self._subscriptions:
            await self._subscriptions.pop().cancel()
        await self._tasks.cancel("the node stops")

    def _handler(self, kind: _Kind) -> Callable[[list[Message]], None]:
        def on_messages(messages: list[Message]) -> None:
            for message in messages:
                if not is_inbox(message.reply):
                    log.warning("upload without an inbox dropped: %s", message.subject[:200])
                    continue
                try:
                    self._accept(kind, message)
                except Refused as refusal:
                    self._connection.send([error_message(message.reply, refusal)])

        return on_messages

    def _accept(self, kind: _Kind, message: Message) -> None:
        *_, upload, part = message.subject.split(".")
        if not _UPLOAD.match(upload):
            raise Refused("INVALID_ARGUMENT", f"{upload[:80]!r} is no id of an upload")
        if part == DONE:
            done = decode_query(_upload_done, message.body)
            if done.count > kind.pieces_max:
                raise Refused(
                    "PAYLOAD_TOO_LARGE", f"{done.count} pieces exceed {kind.bytes_max} bytes"
                )
            if kind.key(upload, DONE) not in self._joining:
                self._joining.add(kind.key(upload, DONE))
                self._tasks.start(self._answer(message, self._join(kind, upload, done)))
            return
        number = check_chunk_number(part, kind.pieces_max)
        if len(message.body) > CHUNK_BYTES_MAX:
            raise Refused("PAYLOAD_TOO_LARGE", f"a piece has at most {CHUNK_BYTES_MAX} bytes")
        if self._pieces_waiting >= PIECES_WAITING_MAX:
            raise Refused("NODE_OVERLOADED", "the node stores other pieces")
        self._pieces_waiting += 1
        self._tasks.start(self._answer(message, self._stage(kind.key(upload, number), message)))

    async def _answer(self, message: Message, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
            answer = Outgoing(message.reply, b"{}")
        except CodedError as error:
            answer = error_message(message.reply, error)
        self._connection.send([answer])

    async def _stage(self, key: str, message: Message) -> None:
        try:
            await self._staged.put(key, message.body)
        finally:
            self._pieces_waiting -= 1

    async def _join(self, kind: _Kind, upload: str, done: UploadDone) -> None:
        try:
            async with self._join_lock:
                if not await kind.blobs.exists(done.digest):
                    await self._store(kind, upload, done)
                await self._remove(kind, upload)
        finally:
            self._joining.discard(kind.key(upload, DONE))

    async def _store(self, kind: _Kind, upload: str, done: UploadDone) -> None:
        pieces = []
        for number in range(done.count):
            entry = await self._staged.get_from_any(kind.key(upload, number))
            if entry is None:
                if await kind.blobs.exists(done.digest):
                    return  # Another node has joined them meanwhile.
                raise Refused("INVALID_ARGUMENT", f"piece {number} of the upload is missing")
            pieces.append(entry.body)
        data = b"".join(pieces)
        if await asyncio.to_thread(digest_bytes, data) != done.digest:
            raise Refused("BLOB_CORRUPT", "the pieces of the upload have another digest")
        await kind.blobs.put(data, kind.bytes_max)

    async def _remove(self, kind: _Kind, upload: str) -> None:
        await self._staged.remove(kind.key(upload, "*"), before=_EVERY)
