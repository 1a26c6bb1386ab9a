"""What became of an append: asked of the journal's leader, however long it takes to answer.

JetStream compares expectations before it looks for duplicates, so a repetition of a stored append
is refused like somebody else's. Message ids tell them apart; nothing here sends an append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rookery.bus.journal.reader import JournalReader
from rookery.bus.ports import Appended, AppendOutcome, AppendRequest, Conflict
from rookery.schemas.errors import Failed

__all__ = ["AppendResolver"]

_QUERIES_MAX = 64
_PAUSE_S = 0.05


class AppendResolver:
    """Answers are ``None`` when the append is not stored and what it expects holds."""

    def __init__(self, reads: JournalReader) -> None:
        self._reader = reads
        self._queries = asyncio.Semaphore(_QUERIES_MAX)

    async def check_entity(self, append: AppendRequest) -> AppendOutcome | None:
        """Only the entity's own expectation is looked at, not the fence."""
        return await self._query_until_answered(self._check_next, append)

    async def resolve_stale(self, append: AppendRequest) -> AppendOutcome | None:
        """The server said that an expectation does not hold."""
        return await self._query_until_answered(self._check_stale, append)

    async def _query_until_answered(
        self, ask: Callable[[AppendRequest], Awaitable[AppendOutcome | None]], append: AppendRequest
    ) -> AppendOutcome | None:
        while True:
            try:
                async with self._queries:
                    return await ask(append)
            except Failed:
                await asyncio.sleep(_PAUSE_S)

    async def _check_next(self, append: AppendRequest) -> AppendOutcome | None:
        """Ours could only be stored as the first message after its expectation."""
        found = await self._reader.next(append.entity, append.expected)
        if found is None:
            return None
        if found.message_id == append.message_id:
            return Appended(append, found.sequence)
        return Conflict(append)

    async def _check_stale(self, append: AppendRequest) -> AppendOutcome | None:
        outcome = await self._check_next(append)
        if outcome:
            return outcome
        if append.fence is None:
            newest, expected = await self._reader.last(append.entity), append.expected
        else:
            newest, expected = await self._reader.last_of_key(append.entity.key), append.fence
        return None if (newest.sequence if newest else 0) == expected else Conflict(append)
