"""The service by which clients read the journal and store blobs: every node of a realm answers."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import msgspec

from rookery.bus.commands.command_messages import CODE, CommandDecoder, is_reply_subject
from rookery.bus.commands.request_endpoint import NatsRequestEndpoint, error_message
from rookery.bus.jetstream_api import ApiError
from rookery.bus.nats import Connection, Message, Outgoing
from rookery.bus.nats.batch_client import Subscription
from rookery.bus.nats.direct_get import page_query
from rookery.bus.ports import BLOB_BYTES_MAX, Blobs, Delivery, Filter, TaskSet
from rookery.bus.storage.blobs import CHUNK_BYTES_MAX, CHUNKS_MAX, is_digest
from rookery.bus.storage.bucket import Bucket
from rookery.bus.streams import StreamSpec
from rookery.bus.subjects import Subjects
from rookery.schemas.codec import encode_json
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.reads import (
    AtQuery,
    ChunkQuery,
    JournalQuery,
    JournalState,
    LastQuery,
    PageQuery,
    StateQuery,
    UploadDone,
)
from rookery.schemas.run import SNAPSHOT_BYTES_MAX

__all__ = [
    "CODE_HEADER",
    "DONE",
    "QUEUE",
    "NodeEndpoint",
    "ReadService",
    "UploadService",
    "check_chunk_number",
    "decode_query",
    "is_inbox",
    "is_page_end",
]

# --- queries --------------------------------------------------------------------------------------

# Reads on the wire: the queries of clients, and the answers of nodes.
#
# A client has no permission for JetStream's own subjects, because the server publishes the answers
# to them wherever a client names. The node builds the server's query from a checked one and names
# the client's inbox as its reply subject, so the server answers the client itself.
#
# ``rookery.<realm>.read.journal``, body a ``JournalQuery`` (``schemas/reads``): ``page`` is
# answered like a direct get of JetStream, one message for each stored one and then one with a
# status; ``last`` and ``at`` like ``STREAM.MSG.GET``; ``state`` with a ``JournalState``.
#
# ``rookery.<realm>.read.blobs.<digest>.<n>``, body empty or a ``ChunkQuery``: chunk ``n`` of a
# blob, as a direct get; with ``"source": "leader"`` as ``STREAM.MSG.GET``. Chunk 0 has the number
# of chunks in the header ``Rookery-Chunks``. ``read.images`` is the same for memory images of
# sessions.
#
# ``rookery.<realm>.upload.<id>.<n>``: piece ``n`` of an upload, at most half a mebibyte; ``id`` is
# 32 hex digits, chosen at random. ``rookery.<realm>.upload.<id>.done``, body ``UploadDone``: the
# node checks the digest of the joined pieces and stores them as a blob. ``upload_image`` is the
# same for images.
#
# An error has the header ``Rookery-Code`` and the body of every refused request. All reply subjects
# begin with ``_INBOX.``.


QUEUE: Final = "rookery"
DONE: Final = "done"
CODE_HEADER: Final = CODE.encode()

_INBOX: Final = "_INBOX."


def is_inbox(subject: str) -> bool:
    """Whether a node may have the server publish an answer to this subject."""
    return subject.startswith(_INBOX) and is_reply_subject(subject)


def is_page_end(message: Message) -> bool:
    """Whether the message ends a page: a status of the server, or an error of the node."""
    return message.header[8:9] == b" " or CODE_HEADER in message.header


# --- service --------------------------------------------------------------------------------------

# The node checks a query and sends the server's own query with the client's inbox as reply subject.
# The server then sends the messages to the client, and they cost the node nothing. The state of the
# stream contains secrets of the nodes, so the node asks for it and answers with three numbers.


log = logging.getLogger(__name__)

T = TypeVar("T")

_journal_query = msgspec.json.Decoder(JournalQuery).decode
_chunk_query = msgspec.json.Decoder(ChunkQuery).decode


class ReadService:
    """Created and used on the event loop of its connection."""

    def __init__(self, connection: Connection, subjects: Subjects) -> None:
        self._connection, self._subjects = connection, subjects
        self._subscriptions: list[Subscription] = []
        self._tasks = TaskSet()
        self._state_queries: list[tuple[StateQuery, str]] = []
        """Queries and their reply subjects, which the next state of the stream answers."""
        self._is_asking = False

    async def open(self) -> None:
        """Answer queries from now on."""
        subscribe, subjects = self._connection.subscribe, self._subjects
        chunks = [subjects.read_chunk(kind, "*", "*") for kind in ("blobs", "images")]
        for subject in (subjects.read_journal, *chunks):
            self._subscriptions.append(await subscribe(subject, self._on_queries, queue=QUEUE))

    async def close(self) -> None:
        """Leave further queries to other nodes."""
        while self._subscriptions:
            await self._subscriptions.pop().cancel()
        await self._tasks.cancel("the node stops")

    def _on_queries(self, messages: list[Message]) -> None:
        sent: list[Outgoing] = []
        for message in messages:
            if not is_inbox(message.reply):
                log.warning("read without an inbox dropped: %s", message.subject[:200])
                continue
            try:
                if (query := self._query_for(message)) is not None:
                    sent.append(query._replace(reply=message.reply))
            except Refused as refusal:
                sent.append(error_message(message.reply, refusal))
        self._connection.send(sent)

    def _query_for(self, message: Message) -> Outgoing | None:
        """The query to the server; ``None`` if the node answers later."""
        if message.subject != self._subjects.read_journal:
            return self._chunk_query(message)
        stream = self._subjects.journal_stream
        one = f"$JS.API.STREAM.MSG.GET.{stream}"
        match decode_query(_journal_query, message.body):
            case PageQuery() as page:
                where = Filter(page.family, page.key)
                subject = self._subjects.facts(where) if where != Filter() else ""
                body = page_query(subject, page.after, page.messages_max)
                return Outgoing(f"$JS.API.DIRECT.GET.{stream}", body)
            case LastQuery() as last:
                subject = self._subjects.facts(Filter(last.family, last.key))
                return Outgoing(one, encode_json({"last_by_subj": subject}))
            case AtQuery() as at:
                return Outgoing(one, encode_json({"seq": at.sequence}))
            case StateQuery() as state:
                self._state_queries.append((state, message.reply))
                if not self._is_asking:
                    self._is_asking = True
                    self._tasks.start(self._answer_state_queries())
        return None

    def _chunk_query(self, message: Message) -> Outgoing:
        *_, kind, digest, number = message.subject.split(".")
        if not is_digest(digest):
            raise Refused("INVALID_ARGUMENT", f"{digest[:80]!r} is no digest")
        check_chunk_number(number, CHUNKS_MAX)
        query = decode_query(_chunk_query, message.body or b"{}")
        bucket = self._subjects.images_bucket if kind == "images" else self._subjects.blobs_bucket
        stored = f"$KV.{bucket}.{digest}.{number}"
        if query.source == "leader":
            question = encode_json({"last_by_subj": stored})
            return Outgoing(f"$JS.API.STREAM.MSG.GET.KV_{bucket}", question)
        return Outgoing(f"$JS.API.DIRECT.GET.KV_{bucket}.{stored}", b"")

    async def _answer_state_queries(self) -> None:
        """Ask for the state once for all queries that have arrived, until no more arrive."""
        try:
            while self._state_queries:
                queries, self._state_queries = self._state_queries, []
                answers = await self._states(queries)
                self._connection.send(answers)
        finally:
            self._is_asking = False

    async def _states(self, queries: list[tuple[StateQuery, str]]) -> list[Outgoing]:
        request = f"STREAM.INFO.{self._subjects.journal_stream}"
        try:
            info = await self._connection.api(request, {"deleted_details": True})
        except (ApiError, Failed) as error:
            failure = Failed("SERVER_UNREACHABLE", f"the journal's stream does not answer: {error}")
            return [error_message(reply, failure) for _, reply in queries]
        state, copies = info["state"], info["config"].get("num_replicas") or 1
        deleted = state.get("deleted") or []
        answers = []
        for query, reply in queries:
            above = [number for number in deleted if number > query.after]
            removed = (above[0], above[-1]) if above else None
            found = JournalState(state["first_seq"], state["last_seq"], removed, copies)
            answers.append(Outgoing(reply, encode_json(found)))
        return answers


def decode_query(decode: Callable[[bytes], T], body: bytes) -> T:
    """The query in a body; ``Refused`` if it is malformed."""
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        raise Refused("INVALID_ARGUMENT", f"the query is invalid: {error}") from None
    except msgspec.DecodeError as error:
        raise Refused("INVALID_JSON", f"the query is not JSON: {error}") from None


def check_chunk_number(text: str, count_max: int) -> int:
    """The number of a chunk or piece, written without leading zeros."""
    is_plain = text.isascii() and text.isdecimal() and len(text) <= 6 and str(int(text)) == text
    if not is_plain or int(text) >= count_max:
        raise Refused("INVALID_ARGUMENT", f"{text[:80]!r} is no number below {count_max}")
    return int(text)


# --- uploads --------------------------------------------------------------------------------------

# The service by which clients store blobs: in pieces, which a node joins after the last one.
#
# A piece waits in a bucket that only nodes use, under the random id of its upload, so any node
# takes any piece. The node stores nothing under a digest before it has all pieces and has checked
# them, so no client changes a chunk of a blob. The bucket has bounds, and the server removes
# abandoned pieces after an hour.


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


# --- endpoint -------------------------------------------------------------------------------------

# The request endpoint of a node, with the services for reads and uploads beside it.


class NodeEndpoint(NatsRequestEndpoint):
    """Port ``RequestEndpoint``. A node that drains accepts no requests and still serves reads."""

    def __init__(
        self,
        connection: Connection,
        subjects: Subjects,
        uploads: UploadService,
        decoder: CommandDecoder,
    ) -> None:
        super().__init__(connection, subjects, decoder)
        self._reads, self._uploads = ReadService(connection, subjects), uploads

    async def open(self, deliver: Callable[[list[Delivery]], None]) -> None:
        await self._reads.open()
        await self._uploads.open()
        await super().open(deliver)

    async def close_reads(self) -> None:
        """Leave reads and uploads to other nodes."""
        await self._reads.close()
        await self._uploads.close()
