"""What became of an append: asked of the journal's leader, however long it takes to answer.

JetStream compares expectations before it looks for duplicates, so a repetition of a stored append
is refused like somebody else's. Message ids tell them apart; nothing here sends an append.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rookery.bus.journal.reader import JournalReads
from rookery.bus.ports import Append, Conflicted, Outcome, Settled
from rookery.schemas.errors import Failed

__all__ = ["Doubts"]

_QUESTIONS_MAX = 64
_PAUSE_S = 0.05


class Doubts:
    """Answers are ``None`` when the append is not stored and what it expects holds."""

    def __init__(self, reads: JournalReads) -> None:
        self._reads = reads
        self._questions = asyncio.Semaphore(_QUESTIONS_MAX)

    async def entity_moved(self, append: Append) -> Outcome | None:
        """Only the entity's own expectation is looked at, not the fence."""
        return await self._asked(self._what_followed, append)

    async def refused(self, append: Append) -> Outcome | None:
        """The server said that an expectation does not hold."""
        return await self._asked(self._what_refused, append)

    async def _asked(
        self, ask: Callable[[Append], Awaitable[Outcome | None]], append: Append
    ) -> Outcome | None:
        while True:
            try:
                async with self._questions:
                    return await ask(append)
            except Failed:
                await asyncio.sleep(_PAUSE_S)

    async def _what_followed(self, append: Append) -> Outcome | None:
        """Ours could only be stored as the first message after its expectation."""
        found = await self._reads.next(append.entity, append.expected)
        if found is None:
            return None
        if found.message_id == append.message_id:
            return Settled(append, found.sequence)
        return Conflicted(append)

    async def _what_refused(self, append: Append) -> Outcome | None:
        outcome = await self._what_followed(append)
        if outcome:
            return outcome
        if append.fence is None:
            newest, expected = await self._reads.last(append.entity), append.expected
        else:
            newest, expected = await self._reads.last_of_key(append.entity.key), append.fence
        return None if (newest.sequence if newest else 0) == expected else Conflicted(append)
