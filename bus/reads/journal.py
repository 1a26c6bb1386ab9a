"""The journal of a realm as a client reads it, through a node.

Single messages come from the stream's leader. Pages may come from a replica that lags, so a read
continues up to the leader's last message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

import msgspec

from rookery.bus.journal.leader_lag import LeaderLag
from rookery.bus.journal.stored_message import from_answer, from_page, matcher
from rookery.bus.nats import MESSAGE_NOT_FOUND, Connection, Message
from rookery.bus.ports import Filter, StoredMessage
from rookery.bus.reads.node_requests import PATIENCE_S, NodeRequests
from rookery.bus.subjects import Subjects
from rookery.schemas.codec import encode_json
from rookery.schemas.envelope import HELD_BY, EntityId
from rookery.schemas.errors import Failed
from rookery.schemas.reads import (
    PAGE_MESSAGES_MAX,
    AtQuery,
    JournalQuery,
    JournalState,
    LastQuery,
    PageQuery,
    StateQuery,
)

__all__ = ["JournalPage", "NodeJournal", "gap", "including"]

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
