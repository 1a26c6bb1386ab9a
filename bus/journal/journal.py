"""The journal and the feed on JetStream: one stream, one subject an entity, one message a commit.

``JetStreamJournal`` joins the appender, the reader and the ordered consumer to the port
``Journal``. ``JetStreamFeed`` follows the journal as it grows; each follower has to remember the
last sequence it has seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from rookery.bus.journal.appender import AppendCounters, Appender
from rookery.bus.journal.ordered_consumer import OrderedConsumer
from rookery.bus.journal.reader import JournalReader, matcher
from rookery.bus.journal.writer_terms import WriterTerms
from rookery.bus.journal_audit import Quarantine
from rookery.bus.nats import Connection
from rookery.bus.ports import AppendOutcome, AppendRequest, Backpressure, Filter, StoredMessage
from rookery.bus.storage.bucket import Bucket, JetStreamClaims
from rookery.bus.subjects import Subjects
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed

__all__ = ["BATCH_OVER", "JetStreamFeed", "JetStreamJournal"]

BATCH_OVER = 16
"""Above this many messages one atomic batch (about 3 ms, whatever its size) is faster than an fsync
a message. With a server that does not sync before it acks a batch is never faster (``None``)."""

_TIMEOUT_S = 2.0
_SILENCE_S_MAX = 10.0
_DIRECT_PAGES_MAX = 16

T = TypeVar("T")


class JetStreamJournal:
    """Port ``Journal``; created and used on the event loop of its connection."""

    def __init__(
        self,
        connection: Connection,
        subjects: Subjects,
        owners: Connection | None = None,
        *,
        batch_over: int | None = BATCH_OVER,
        timeout_s: float = _TIMEOUT_S,
        quarantine: Quarantine | None = None,
    ) -> None:
        """``owners``: the connection of claims and appends; ``connection`` by default. Without a
        ``quarantine`` damaged messages are read as they are."""
        self._quarantine = Quarantine() if quarantine is None else quarantine
        self._connection, self._subjects = connection, subjects
        owners = owners or connection
        claims = JetStreamClaims(Bucket(owners, subjects, subjects.claims_bucket))
        self._terms = WriterTerms(owners, subjects, claims)
        self._reader = JournalReader(connection, subjects)
        self._appender = Appender(
            owners,
            subjects,
            self._reader,
            self._terms,
            batch_over=batch_over,
            timeout_s=timeout_s,
        )

    @property
    def pressure(self) -> Backpressure:
        """Why the server does not accept appends at present."""
        return self._appender.pressure

    @property
    def counters(self) -> AppendCounters:
        return self._appender.counters

    async def open(self) -> None:
        """Start; the connection must be open and the stream must exist."""
        await self._appender.open()

    async def close(self) -> None:
        """Stop; no append is settled from now on, but those in flight may still be stored."""
        await self._appender.close()

    def append(
        self, appends: Sequence[AppendRequest], settle: Callable[[list[AppendOutcome]], None]
    ) -> None:
        self._appender.append(appends, settle)

    async def begin_terms(self, partitions: frozenset[int]) -> dict[int, int]:
        return await self._terms.begin(partitions)

    def abandon_terms(self) -> None:
        """Forget all terms, and settle the appends in flight as superseded."""
        self._terms.abandon()
        self._appender.supersede_all()

    async def last(self, entity: EntityId) -> StoredMessage | None:
        found = await self._reader.last(entity)
        return found and self._quarantine.read(found)

    async def at(self, sequence: int) -> StoredMessage | None:
        found = await self._reader.at(sequence)
        return found and self._quarantine.read(found)

    async def read(self, entity: EntityId, after: int = 0) -> list[StoredMessage]:
        return self._quarantine.read_all(await self._reader.read(entity, after))

    async def of_key(self, key: str, messages_max: int) -> list[StoredMessage] | None:
        found = await self._reader.of_key(key, messages_max)
        return found and self._quarantine.read_all(found)

    async def scan(
        self, where: Filter, after: int = 0
    ) -> AsyncGenerator[list[StoredMessage], None]:
        """Some pages by direct get, and what follows them by a consumer: to create one costs the
        server more than to send a page, and takes a cluster that elects leaders many seconds."""
        matches = matcher(where)
        (subject, *others) = self._subjects.fact_filters(where)
        if others:
            end = await self._reader.end()
        else:
            first = await self._reader.first_page(subject, after)
            end = first.end
            page, left = first.messages, _DIRECT_PAGES_MAX if first.is_intact else 0
            while left:
                if selected := self._selected(page, matches, end):
                    yield selected
                after = page[-1].sequence if page else after
                if after >= end:
                    return
                if left := left - 1:
                    page = await self._reader.next_page(subject, after, end)
        consumer = OrderedConsumer(self._connection, self._subjects, where, after)
        try:
            await _with_timeout(consumer.start())
            while consumer.pending and consumer.position < end:
                page = await _with_timeout(consumer.page())
                if selected := self._selected(page, matches, end):
                    yield selected
        finally:
            await consumer.close()

    def _selected(
        self,
        page: Iterable[StoredMessage],
        matches: Callable[[StoredMessage], bool],
        end: int,
    ) -> list[StoredMessage]:
        return self._quarantine.read_all(
            [one for one in page if one.sequence <= end and matches(one)]
        )

    async def end(self) -> int:
        return await self._reader.end()

    async def identity(self) -> str:
        return await self._terms.identity()

    async def verified_end(self, partitions: frozenset[int]) -> int:
        return await self._terms.verified_end(partitions)


async def _with_timeout(work: Coroutine[Any, Any, T]) -> T:
    """Fail after a silence: unlike a feed, a scan must report that no reply arrives."""
    try:
        async with asyncio.timeout(_SILENCE_S_MAX):
            return await work
    except TimeoutError:
        raise Failed(
            "SERVER_UNREACHABLE", f"the journal has not replied for {_SILENCE_S_MAX} s"
        ) from None


class JetStreamFeed:
    """Port ``Feed``; each follower has its own consumer, removed when it stops."""

    def __init__(
        self, connection: Connection, subjects: Subjects, quarantine: Quarantine | None = None
    ) -> None:
        self._connection, self._subjects = connection, subjects
        self._quarantine = Quarantine() if quarantine is None else quarantine

    async def follow(
        self, where: Filter, after: int = 0
    ) -> AsyncGenerator[list[StoredMessage], None]:
        matches = matcher(where)
        consumer = OrderedConsumer(self._connection, self._subjects, where, after)
        try:
            while True:
                if selected := [one for one in await consumer.page() if matches(one)]:
                    yield self._quarantine.read_all(selected)
        finally:
            await consumer.close()
