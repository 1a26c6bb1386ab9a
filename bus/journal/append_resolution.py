"""The resolution of appends without an ack: a query to the leader of the journal's stream.

JetStream compares expectations before it looks for duplicates, so it refuses the repetition of a
stored append like an append of another writer. The message id distinguishes the two.

A server that led the journal and was away, stopped or isolated, still believes for a moment after
its return that it leads. It then refuses appends and answers queries beside the real leader, from
the messages it had when it left. So only a message that the writer did not know is proof of a
conflict, and an answer that lacks what the writer knew is no answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from rookery.bus.journal.leader_lag import LeaderLag
from rookery.bus.journal.reader import JournalReader
from rookery.bus.ports import Appended, AppendOutcome, AppendRequest, Conflict, StoredMessage
from rookery.schemas.errors import Failed

__all__ = ["AppendResolver"]

_QUERIES_MAX = 64
_PAUSE_S = 0.05


class AppendResolver:
    """Finds the outcome of an append; ``None`` if it is not stored and its expectation holds."""

    def __init__(self, reader: JournalReader) -> None:
        self._reader = reader
        self._queries = asyncio.Semaphore(_QUERIES_MAX)

    async def check_entity(self, append: AppendRequest) -> AppendOutcome | None:
        """Check the expectation of the entity only, not the fence."""
        return await self._query_until_answered(self._check_next, append)

    async def resolve_stale(self, append: AppendRequest) -> AppendOutcome | None:
        """Resolve an append that the server refused because an expectation does not hold."""
        check = partial(self._check_stale, LeaderLag())
        return await self._query_until_answered(check, append)

    async def _query_until_answered(
        self,
        query: Callable[[AppendRequest], Awaitable[AppendOutcome | None]],
        append: AppendRequest,
    ) -> AppendOutcome | None:
        while True:
            try:
                async with self._queries:
                    return await query(append)
            except Failed:
                await asyncio.sleep(_PAUSE_S)

    async def _check_next(self, append: AppendRequest) -> AppendOutcome | None:
        """The append can only be stored as the entity's first message after ``expected``."""
        return _outcome(append, await self._reader.next(append.entity, append.expected))

    async def _check_stale(self, lag: LeaderLag, append: AppendRequest) -> AppendOutcome | None:
        # The leaders of streams answer no query while the cluster elects its own.
        found = await self._reader.next_of_any_copy(append.entity, append.expected)
        outcome = _outcome(append, found) or await self._check_next(append)
        if outcome:
            return outcome
        if append.fence is None:
            newest, known = await self._reader.last(append.entity), append.expected
        else:
            newest, known = await self._reader.last_of_key(append.entity.key), append.fence
        if newest is None or newest.sequence <= known:
            last = newest.sequence if newest else 0
            return None if last == known else await self._check_behind(lag, append, last)
        # Something was written meanwhile; by this append, if the first answer lacked it.
        outcome = await self._check_next(append)
        if outcome is None and newest.entity == append.entity:
            raise Failed("SERVER_UNREACHABLE", f"two servers lead the journal of {append.entity}")
        return outcome or Conflict(append)

    async def _check_behind(self, lag: LeaderLag, append: AppendRequest, last: int) -> Conflict:
        """The journal lacks messages that the writer knew."""
        known, copies = append.fence or append.expected, await self._reader.copies()
        try:
            lag.check(last, known, copies)
        except Failed as failure:
            if failure.code != "FEED_GAP":
                raise
        return Conflict(append)


def _outcome(append: AppendRequest, found: StoredMessage | None) -> AppendOutcome | None:
    """``found``: the entity's first message after those that the writer knew."""
    if found is None:
        return None
    if found.message_id == append.message_id:
        return Appended(append, found.sequence)
    return Conflict(append)
