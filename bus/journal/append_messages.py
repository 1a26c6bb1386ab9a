"""Appends as JetStream messages, and the resolution of those without an ack."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from rookery.bus.jetstream_api import EXPECTED_SEQUENCE, EXPECTED_SUBJECT, MESSAGE_ID
from rookery.bus.journal.reader import CHAIN, KINDS, JournalReader, LeaderLag
from rookery.bus.nats import Outgoing
from rookery.bus.ports import (
    Appended,
    AppendOutcome,
    AppendRequest,
    Conflict,
    Filter,
    StoredMessage,
)
from rookery.bus.subjects import Subjects
from rookery.schemas.errors import Failed

__all__ = [
    "AppendResolver",
    "InFlightAppend",
    "encode_batch",
    "encode_single",
    "halves",
    "next_group",
]

# --- append messages ------------------------------------------------------------------------------

# Appends as JetStream messages: singles, atomic batches, and which appends may share a batch.


BATCH_MESSAGES_MAX = 1000
"""The server's limit (10199)."""
BATCH_BYTES_MAX = 8 << 20


class InFlightAppend:
    """An append whose outcome is not known yet."""

    __slots__ = ("append", "send_alone", "settle", "subject", "term", "tries")

    def __init__(
        self,
        append: AppendRequest,
        settle: Callable[[list[AppendOutcome]], None],
        subject: str,
        term: tuple[int, str] | None,
    ) -> None:
        self.append, self.settle, self.subject = append, settle, subject
        self.term = term
        """Partition and term; ``None`` for a node's facts about itself."""
        self.send_alone = False
        """Whether it was sent without an ack: only the ack of a single names its outcome."""
        self.tries = 0


def encode_single(in_flight: InFlightAppend, subjects: Subjects, reply: str) -> Outgoing:
    """An append as one message."""
    append = in_flight.append
    return Outgoing(in_flight.subject, append.body, reply, _headers(append, subjects))


def encode_batch(
    members: Sequence[InFlightAppend], subjects: Subjects, name: str, reply: str
) -> list[Outgoing]:
    """Appends as one atomic batch; the server acks only the last member."""
    messages = []
    for number, member in enumerate(members, 1):
        append = member.append
        headers = _headers(append, subjects)
        headers += [("Nats-Batch-Id", name), ("Nats-Batch-Sequence", str(number))]
        messages.append(Outgoing(member.subject, append.body, "", headers))
    last = messages[-1]
    messages[-1] = last._replace(reply=reply, headers=[*last.headers, ("Nats-Batch-Commit", "1")])
    return messages


def _headers(append: AppendRequest, subjects: Subjects) -> list[tuple[str, str]]:
    headers = [(MESSAGE_ID, append.message_id), (CHAIN, append.chain)]
    if append.kinds:
        headers.append((KINDS, append.kinds))
    if append.fence is None:
        headers.append((EXPECTED_SEQUENCE, str(append.expected)))
    else:
        headers.append((EXPECTED_SEQUENCE, str(append.fence)))
        headers.append((EXPECTED_SUBJECT, subjects.facts(Filter(key=append.entity.key))))
    return headers


def next_group(
    waiting: Sequence[InFlightAppend],
) -> tuple[list[InFlightAppend], list[InFlightAppend]]:
    """Split into the appends that may share one batch, and the rest.

    A fenced append never shares a batch with another append of its key: the server compares fences
    with stored messages only, not with earlier members (measured, 2.15.1), so both would pass.
    """
    group: list[InFlightAppend] = []
    rest: list[InFlightAppend] = []
    fenced: dict[str, bool] = {}
    size = 0
    for one in waiting:
        append = one.append
        key, fences = append.entity.key, append.fence is not None
        size += len(append.body)
        crowded = len(group) >= BATCH_MESSAGES_MAX or (group and size > BATCH_BYTES_MAX)
        if crowded or (key in fenced and (fences or fenced[key])):
            rest.append(one)
            continue
        fenced[key] = fenced.get(key, False) or fences
        group.append(one)
    return group, rest


def halves(members: list[InFlightAppend]) -> tuple[list[InFlightAppend], list[InFlightAppend]]:
    middle = len(members) // 2
    return members[:middle], members[middle:]


# --- append resolution ----------------------------------------------------------------------------

# The resolution of appends without an ack: a query to the leader of the journal's stream.
#
# JetStream compares expectations before it looks for duplicates, so it refuses the repetition of a
# stored append like an append of another writer. The message id distinguishes the two.
#
# A server that led the journal and was away, stopped or isolated, still believes for a moment after
# its return that it leads. It then refuses appends and answers queries beside the real leader, from
# the messages it had when it left. So only a message that the writer did not know is proof of a
# conflict, and an answer that lacks what the writer knew is no answer.


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
