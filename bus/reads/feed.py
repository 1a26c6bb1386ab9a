"""The feed of a client: the facts that the server republishes, and pages of a node for the rest.

The server republishes each stored message under its subject with its sequence and that of the
message before it on this subject. The follower returns a live message at once if no message can be
missing before it: its sequence is the next one, or it is the next one of the only subject that the
filter selects. Otherwise a page fills the gap, and the live message only says how far. Pages also
come first, after a reconnect, when the buffer of live messages was full, and after a silence,
because a server may drop a message without notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeVar

from rookery.bus.event_loop import Backoff
from rookery.bus.journal.reader import LeaderLag, from_page, matcher
from rookery.bus.nats import Connection, Message
from rookery.bus.nats.batch_client import Subscription, header_value
from rookery.bus.ports import Filter, StoredMessage
from rookery.bus.reads.realm_reads import JournalPage, NodeJournal, gap, including
from rookery.bus.subjects import Subjects
from rookery.schemas.errors import CODES, Failed

__all__ = ["NodeFeed"]

T = TypeVar("T")

LIVE_MESSAGES_MAX: Final = 2_048
LIVE_BYTES_MAX: Final = 8 << 20
"""Bounds of the messages that a slow reader has not taken; pages have the rest later."""
SILENCE_S: Final = 4.0
"""After this time without a message the follower reads a page."""
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.02, 0.5


class NodeFeed:
    """Port ``Feed``; used on the event loop of its connection."""

    def __init__(self, connection: Connection, subjects: Subjects) -> None:
        self._connection, self._subjects = connection, subjects
        self._journal = NodeJournal(connection, subjects)

    async def follow(
        self, where: Filter, after: int = 0
    ) -> AsyncGenerator[list[StoredMessage], None]:
        matches = matcher(where)
        live = _LiveMessages(self._connection, self._subjects)
        follower = _Follower(self._journal, self._subjects, live, where, after)
        try:
            await follower.check()
            await live.open(self._subjects.fact_filters(where))
            while True:
                if selected := [one for one in await follower.next() if matches(one)]:
                    yield selected
                if follower.error is not None:
                    raise follower.error
        finally:
            await live.close()


class _Follower:
    """Joins pages and live messages in the order of the journal."""

    def __init__(
        self,
        journal: NodeJournal,
        subjects: Subjects,
        live: _LiveMessages,
        where: Filter,
        after: int,
    ) -> None:
        self._journal, self._subjects, self._live = journal, subjects, live
        self._pages = including(where)
        self._has_every_message = self._pages == Filter()
        self._has_one_subject = None not in (self._pages.family, self._pages.key)
        self._position = after
        """Every selected message up to this sequence was returned."""
        self._target = after
        """Pages are read at least up to this sequence."""
        self._reads_pages, self._checks = True, False
        self._highest_live = 0
        """No live message up to this sequence is to come."""
        self._pause = Backoff(_PAUSE_S_MIN, _PAUSE_S_MAX)
        self._lag = LeaderLag()
        self.error: Failed | None = None
        """Why the feed ends behind the messages returned last."""

    async def next(self) -> list[StoredMessage]:
        """The next messages; maybe none, after a wait."""
        dropped, interrupted = self._live.pop_losses()
        self._reads_pages |= dropped
        if self._checks or interrupted:
            await self.check()
        if self._reads_pages:
            return await self._read_page()
        if (arrived := await self._live.wait(SILENCE_S)) is None:
            self._reads_pages = True
            return []
        return self._join_live(arrived)

    async def check(self) -> None:
        """Raise ``FEED_GAP`` if the journal has lost messages above the position."""
        state = await _until_answered(lambda: self._journal.check(self._position, self._lag))
        # A filtered feed cannot tell which subject a removed message had: any may match.
        if state.removed is not None and not self._has_every_message:
            raise gap(*state.removed)
        if self._live.is_closed:
            self._highest_live = state.last
        self._checks = False

    async def _read_page(self) -> list[StoredMessage]:
        page = await _until_answered(lambda: self._journal.page(self._pages, self._position))
        found = self._before_gap(page)
        if found:
            self._position = found[-1].sequence
            self._pause.reset()
        self._reads_pages = page.has_more or self._position < self._target
        if self._reads_pages and not page.messages:  # The replica lags, or the journal is another.
            self._checks = True
            await asyncio.sleep(self._pause.next_s())
        return found

    def _before_gap(self, page: JournalPage) -> list[StoredMessage]:
        """The messages of a page up to the first that is missing."""
        if self._has_every_message:
            for number, stored in enumerate(page.messages):
                expected = self._position + 1 + number
                if stored.sequence != expected:
                    self.error = gap(expected, stored.sequence - 1)
                    return page.messages[:number]
        return page.messages

    def _join_live(self, arrived: list[Message]) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        for message in arrived:
            stored = from_page(message, self._subjects)
            if stored.sequence <= self._highest_live:
                self._checks = True  # The journal may have been replaced.
            self._highest_live = max(self._highest_live, stored.sequence)
            if stored.sequence <= self._position:
                continue
            if self._is_next(message, stored.sequence):
                found.append(stored)
                self._position = stored.sequence
            else:
                self._target, self._reads_pages = max(self._target, stored.sequence), True
        return found

    def _is_next(self, message: Message, sequence: int) -> bool:
        """Whether no selected message can be missing between the position and this one."""
        if self._reads_pages:
            return False
        if sequence == self._position + 1:
            return True
        before = header_value(message.header, b"Nats-Last-Sequence")
        return self._has_one_subject and before.isdecimal() and int(before) <= self._position


async def _until_answered(read: Callable[[], Awaitable[T]]) -> T:
    """Repeat for as long as the realm has no server or no node."""
    pause = Backoff(_PAUSE_S_MIN, _PAUSE_S_MAX)
    while True:
        try:
            return await read()
        except Failed as error:
            if not CODES[error.code].retryable:
                raise
        await asyncio.sleep(pause.next_s())


class _LiveMessages:
    """The republished messages of some subjects, up to a bound."""

    def __init__(self, connection: Connection, subjects: Subjects) -> None:
        self._connection, self._stream = connection, subjects.journal_stream
        self._subscriptions: list[Subscription] = []
        self._arrived: list[Message] = []
        self._bytes = 0
        self._dropped = self._interrupted = False
        self._changed = asyncio.Event()
        connection.on_reconnect.append(self._interrupt)
        connection.on_disconnect.append(self._interrupt)

    async def open(self, subjects: list[str]) -> None:
        for subject in subjects:
            subscription = await self._connection.subscribe(subject, self._on_batch)
            self._subscriptions.append(subscription)

    async def close(self) -> None:
        self._connection.on_reconnect.remove(self._interrupt)
        self._connection.on_disconnect.remove(self._interrupt)
        while self._subscriptions:
            await self._subscriptions.pop().cancel()

    @property
    def is_closed(self) -> bool:
        return not self._subscriptions

    def pop_losses(self) -> tuple[bool, bool]:
        """Whether messages were dropped, or may be lost, and whether the connection was lost, since
        the last call."""
        losses = self._dropped, self._interrupted
        self._dropped = self._interrupted = False
        return losses

    async def wait(self, timeout_s: float) -> list[Message] | None:
        """The messages that have arrived, maybe none after a break; ``None`` after a silence."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        if not self._changed.is_set():
            return None
        self._changed.clear()
        arrived, self._arrived, self._bytes = self._arrived, [], 0
        return arrived

    def _on_batch(self, messages: list[Message]) -> None:
        for message in messages:
            if header_value(message.header, b"Nats-Stream") != self._stream:
                continue  # An ack that a client has steered here.
            self._bytes += len(message.body)
            if len(self._arrived) >= LIVE_MESSAGES_MAX or self._bytes > LIVE_BYTES_MAX:
                self._drop()
                break
            self._arrived.append(message)
        self._changed.set()

    def _drop(self) -> None:
        self._arrived, self._bytes, self._dropped = [], 0, True
        self._changed.set()

    def _interrupt(self) -> None:
        self._interrupted = True
        self._drop()
