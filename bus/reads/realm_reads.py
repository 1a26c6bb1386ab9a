"""The journal and the blobs of a realm as a client reads them, through a node."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from rookery.bus.clock import entropy
from rookery.bus.event_loop import Backoff
from rookery.bus.jetstream_api import MESSAGE_NOT_FOUND, NO_RESPONDERS, status_of
from rookery.bus.journal.reader import LeaderLag, from_answer, from_page, matcher
from rookery.bus.nats import Connection, Message, Outgoing
from rookery.bus.nats.batch_client import header_value
from rookery.bus.nats.direct_get import DirectPage, exchange, page_of
from rookery.bus.ports import BLOB_BYTES_MAX, Filter, StoredMessage
from rookery.bus.reads.service import CODE_HEADER, DONE, is_page_end
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
from rookery.schemas.envelope import HELD_BY, EntityId
from rookery.schemas.errors import CODES, CodedError, Failed, Refused
from rookery.schemas.reads import (
    PAGE_MESSAGES_MAX,
    AtQuery,
    ChunkQuery,
    JournalQuery,
    JournalState,
    LastQuery,
    PageQuery,
    StateQuery,
    UploadDone,
)

__all__ = [
    "PATIENCE_S",
    "JournalPage",
    "NodeBlobs",
    "NodeJournal",
    "NodeRequests",
    "gap",
    "including",
]

# --- node requests --------------------------------------------------------------------------------

# Requests of clients to the read and upload services, repeated until a node has answered.
#
# A read changes nothing and an upload's pieces replace themselves, so any request may be repeated.


T = TypeVar("T")

PATIENCE_S: Final = 30.0
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.02, 1.0


class NodeRequests:
    """Asks the nodes of a realm over one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def ask(
        self, subject: str, body: bytes = b"", *, patience_s: float = PATIENCE_S
    ) -> Message:
        """The reply; ``Failed`` if no node has replied after ``patience_s``."""

        async def once() -> Message:
            return (await self._exchange(subject, body, _is_any))[-1]

        return await _retry(once, patience_s)

    async def page(
        self, subject: str, body: bytes, *, patience_s: float = PATIENCE_S
    ) -> DirectPage:
        """The messages of a page."""

        async def once() -> DirectPage:
            return page_of(await self._exchange(subject, body, is_page_end))

        return await _retry(once, patience_s)

    async def _exchange(
        self, subject: str, body: bytes, is_last: Callable[[Message], bool]
    ) -> list[Message]:
        replies = await exchange(self._connection, Outgoing(subject, body), is_last)
        _raise_error(replies[-1])
        return replies


async def _retry(attempt: Callable[[], Awaitable[T]], patience_s: float) -> T:
    """Repeat while the errors may pass; then raise the last one."""
    loop, pause = asyncio.get_running_loop(), Backoff(_PAUSE_S_MIN, _PAUSE_S_MAX)
    end_s = loop.time() + patience_s
    while True:
        try:
            return await attempt()
        except Failed as error:
            if not CODES[error.code].retryable or loop.time() >= end_s:
                raise
        await asyncio.sleep(pause.next_s())


def _is_any(_: Message) -> bool:
    return True


def _raise_error(message: Message) -> None:
    """Raise the error that the message is, if it is one."""
    if status_of(message) == NO_RESPONDERS:
        raise Failed("PARTITION_UNOWNED", "no node of this realm answers", hint="rookery up")
    if code := header_value(message.header, CODE_HEADER):
        try:
            text = msgspec.json.decode(message.body, type=dict[str, Any])["error"]["message"]
        except (msgspec.DecodeError, KeyError, TypeError):
            text = "the node gave no reason"
        raise _coded(code, str(text))


def _coded(code: str, text: str) -> CodedError:
    if code not in CODES:
        return Failed("UNKNOWN_CODE", f"{code}: {text}")
    return (Failed if CODES[code].retryable else Refused)(code, text)


# --- journal --------------------------------------------------------------------------------------

# Single messages come from the stream's leader. Pages may come from a replica that lags, so a read
# continues up to the leader's last message.


_STALE_PAUSE_S: Final = 0.02
_STALE_MAX: Final = 250


class JournalPage(msgspec.Struct, frozen=True):
    """The next messages of a query, in order."""

    messages: list[StoredMessage]
    has_more: bool


class NodeJournal:
    """Port ``JournalReads``; used on the event loop of its connection."""

    def __init__(self, connection: Connection, subjects: Subjects) -> None:
        self._requests, self._subjects = NodeRequests(connection), subjects

    async def end(self, *, patience_s: float = PATIENCE_S) -> int:
        return (await self._state(0, patience_s)).last

    async def check(self, after: int, lag: LeaderLag) -> JournalState:
        """Where the journal begins and ends. ``Failed`` FEED_GAP if it ends before ``after`` for
        longer than the reader's ``lag`` allows, or lacks messages above it at its beginning."""
        state = await self._state(after, PATIENCE_S)
        lag.check(state.last, after, state.copies)
        if state.first > after + 1:
            raise gap(after + 1, state.first - 1)
        return state

    async def last(self, entity: EntityId) -> StoredMessage | None:
        return await self._one(LastQuery(entity.family, entity.key))

    async def at(self, sequence: int) -> StoredMessage | None:
        return await self._one(AtQuery(sequence))

    async def read(self, entity: EntityId, after: int = 0) -> list[StoredMessage]:
        where = Filter(entity.family, entity.key)
        last = await self.last(entity)
        end = last.sequence if last else 0
        return [one async for page in self._pages(where, after, end) for one in page]

    async def scan(
        self, where: Filter, after: int = 0
    ) -> AsyncGenerator[list[StoredMessage], None]:
        matches, whole = matcher(where), including(where)
        state, last = await asyncio.gather(
            self._state(after, PATIENCE_S), self._one(LastQuery(whole.family, whole.key))
        )
        end = last.sequence if last else 0
        if after < end and state.first > after + 1:
            raise gap(after + 1, state.first - 1)
        if after < end and state.removed is not None:
            raise gap(*state.removed)
        async with aclosing(self._pages(whole, after, end)) as pages:
            async for page in pages:
                if selected := [one for one in page if matches(one)]:
                    yield selected

    async def page(
        self, where: Filter, after: int, *, messages_max: int = PAGE_MESSAGES_MAX
    ) -> JournalPage:
        """The next messages above ``after``, of any run."""
        query = encode_json(PageQuery(after, where.family, where.key, messages_max))
        found = await self._requests.page(self._subjects.read_journal, query)
        messages = [from_page(message, self._subjects) for message in found.messages]
        return JournalPage(messages, found.has_more)

    async def _pages(
        self, where: Filter, after: int, end: int
    ) -> AsyncGenerator[list[StoredMessage], None]:
        """The messages above ``after`` up to ``end``, which is the sequence of one of them."""
        at, stale, task = after, 0, None
        try:
            while at < end:
                page = await (task or self.page(where, at))
                found = [one for one in page.messages if one.sequence <= end]
                at, task = found[-1].sequence if found else at, None
                if at < end and page.has_more:  # The next page is under way before it is wanted.
                    task = asyncio.create_task(self.page(where, at))
                if found:
                    stale = 0
                    yield found
                    continue
                stale += 1  # The replica lags.
                if stale > _STALE_MAX:
                    text = f"no replica has the journal from {at} to {end}"
                    raise Failed("SERVER_UNREACHABLE", text)
                await asyncio.sleep(_STALE_PAUSE_S)
        finally:
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _state(self, after: int, patience_s: float) -> JournalState:
        reply = await self._ask(StateQuery(after), patience_s)
        return msgspec.json.decode(reply.body, type=JournalState)

    async def _one(self, query: LastQuery | AtQuery) -> StoredMessage | None:
        answer = msgspec.json.decode((await self._ask(query, PATIENCE_S)).body, type=dict[str, Any])
        if (error := answer.get("error")) is None:
            return from_answer(answer, self._subjects)
        if error.get("err_code") in MESSAGE_NOT_FOUND:
            return None
        raise Failed("SERVER_UNREACHABLE", f"the journal's stream does not answer: {error}")

    async def _ask(self, query: JournalQuery, patience_s: float) -> Message:
        return await self._requests.ask(
            self._subjects.read_journal, encode_json(query), patience_s=patience_s
        )


def including(where: Filter) -> Filter:
    """The family and key whose messages include all that the filter selects. A family that other
    messages hold has no subjects of its own."""
    family = None if where.family in HELD_BY else where.family
    return Filter(family, where.key)


def gap(first: int, last: int) -> Failed:
    """The error of a journal that has lost messages."""
    return Failed(
        "FEED_GAP",
        f"messages {first} to {last} are missing from the journal",
        hint="rookery journal verify",
    )


# --- blobs ----------------------------------------------------------------------------------------


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
