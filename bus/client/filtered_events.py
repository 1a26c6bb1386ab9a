"""The client's facts by a filter of their index, each with the cursor to continue from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple

import msgspec

from rookery.bus.ports import Filter, StoredMessage
from rookery.bus.ports.journal import Feed
from rookery.schemas.event_index import select_fact
from rookery.schemas.events import EventCursor, EventFilter

__all__ = ["EventsMixin", "SelectedEvent"]


class SelectedEvent(NamedTuple):
    """A fact that a filter selects."""

    fact: dict[str, Any]
    """As much of it as the filter's ``payload_access`` says, as written."""
    key: str
    """Of its entity: mostly the session."""
    cursor: EventCursor
    """Continues after this fact, with the same filter."""


class EventsMixin(ABC):
    """The part of ``Client`` for filtered facts."""

    @property
    @abstractmethod
    def feed(self) -> Feed: ...

    async def filtered_events(
        self, where: EventFilter, cursor: EventCursor | None = None, *, after: int = 0
    ) -> AsyncGenerator[SelectedEvent, None]:
        """The facts that ``where`` selects, above sequence ``after`` or behind the cursor, and live
        ones, without loss or duplicates. ``CURSOR_SCOPE_MISMATCH`` for the cursor of another
        filter, ``UNSUPPORTED_FEATURE`` for a set without a domain."""
        fingerprint, fact_after = where.check().fingerprint, 0
        if cursor is not None:
            cursor.require(where)
            after, fact_after = cursor.sequence, cursor.fact
        begin = after - 1 if fact_after else after
        async with aclosing(self.feed.follow(_narrowed(where), begin)) as pages:
            async for page in pages:
                for stored in page:
                    for number, fact in enumerate(_facts(stored), 1):
                        if stored.sequence == after and number <= fact_after:
                            continue
                        seen = select_fact(where, fact, stored.entity.key)
                        if seen is not None:
                            place = EventCursor(
                                sequence=stored.sequence, fact=number, fingerprint=fingerprint
                            )
                            yield SelectedEvent(seen, stored.entity.key, place)


def _narrowed(where: EventFilter) -> Filter:
    """What the server may select by; the filter itself is applied to what it sends."""
    return Filter(where.only("families"), where.only("session_ids"), where.only("run_ids"))


def _facts(stored: StoredMessage) -> list[dict[str, Any]]:
    """A message's facts as written; a sealed or damaged message has none that can be selected."""
    try:
        return msgspec.json.decode(stored.body, type=list[dict[str, Any]])
    except msgspec.MsgspecError:
        return []
