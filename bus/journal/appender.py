"""The appender: it sends appends and works on each until its outcome is known.

It sends a group as pipelined singles or, above ``batch_over`` messages, as one atomic batch, and
halves a batch that the server refuses. It sends an append without an ack again, alone and under the
same message id (a full server stores a part of a batch and never acks: measured, 2.15.1). If the
server then refuses it as stale, the ack of our own message may have been lost, so the appender
queries the leader (``append_messages``). If no stream listens, the term may have ended, so it
queries the stream (``writer_terms``).

``OwnTail`` saves queries: sequences are never reused, so consecutive acks prove that no other
writer has a message between them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from rookery.bus.event_loop import Backoff, TaskSet
from rookery.bus.jetstream_api import AckVerdict, decode_ack
from rookery.bus.journal.append_messages import (
    AppendResolver,
    InFlightAppend,
    encode_batch,
    encode_single,
    halves,
    next_group,
)
from rookery.bus.journal.reader import JournalReader
from rookery.bus.journal.writer_terms import WriterTerms
from rookery.bus.nats import Connection, Message
from rookery.bus.nats.batch_client import Subscription
from rookery.bus.ports import (
    Appended,
    AppendOutcome,
    AppendRejected,
    AppendRequest,
    Backpressure,
    Conflict,
    Superseded,
)
from rookery.bus.subjects import NODE_FAMILY, Subjects, partition_of
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed, Refused

__all__ = ["AppendCounters", "Appender", "OwnTail"]

MESSAGES_MAX = 1_024
"""How many messages the tail has; a search through all is faster than a query."""


class OwnTail:
    """The end of the journal, as far back as every message is known to be from this node."""

    def __init__(self) -> None:
        self._entities: deque[EntityId] = deque(maxlen=MESSAGES_MAX)
        self._end = 0

    def add(self, sequence: int, entity: EntityId) -> None:
        """Add an acknowledged message of this node."""
        if sequence != self._end + 1:
            self._entities.clear()
        self._entities.append(entity)
        self._end = sequence

    def clear(self) -> None:
        """Forget all: after a disconnect the server may be another one, with another journal."""
        self._entities.clear()

    def has_no_message_of(self, entity: EntityId, after: int, through: int) -> bool:
        """Whether certainly no message of the entity is above ``after`` and up to ``through``."""
        before = self._end - len(self._entities)
        if not before <= after <= through <= self._end:
            return False
        return entity not in islice(self._entities, after - before, through - before)


_TIMEOUT_CHECK_S = 0.1
"""How often the appender checks for groups without an ack."""
_PAUSE_S_MIN = 0.05
_PAUSE_S_MAX = 0.25
"""Before the next probe: a cluster that elects a leader has one at any moment."""
_FINAL_CHECK_S = 1.0
"""How long the appender queries whether an append was stored before its term ended."""
_PROBE_MESSAGES = 16
"""How many appends are sent as a probe; the others wait for the first success."""


class AppendCounters(msgspec.Struct):
    """Counters for metrics."""

    appends: int = 0
    batches: int = 0
    conflicts: int = 0
    lost_acks: int = 0
    """Appends that were stored although their ack never arrived."""
    resent: int = 0


class _Flight(NamedTuple):
    """The appends that one ack settles: a single, or all members of a batch."""

    members: list[InFlightAppend]
    deadline_s: float
    is_batch: bool = False


class Appender:
    """The writing half of the journal."""

    def __init__(
        self,
        connection: Connection,
        subjects: Subjects,
        reader: JournalReader,
        terms: WriterTerms,
        *,
        batch_over: int | None,
        timeout_s: float,
    ) -> None:
        self.pressure = Backpressure.NONE
        self.counters = AppendCounters()
        self._connection, self._subjects, self._terms = connection, subjects, terms
        self._resolver, self._own_tail = AppendResolver(reader), OwnTail()
        self._batch_over, self._timeout_s = batch_over, timeout_s
        self._loop: asyncio.AbstractEventLoop
        self._flights: dict[int, _Flight] = {}
        self._count = 0
        self._unsettled: set[InFlightAppend] = set()
        """Appends whose outcome no caller knows yet."""
        self._resend_queue: list[InFlightAppend] = []
        self._pause = Backoff(_PAUSE_S_MIN, _PAUSE_S_MAX)
        self._probe_timer: asyncio.TimerHandle | None = None
        self._timeout_timer: asyncio.TimerHandle | None = None
        self._tasks = TaskSet()
        self._terms_check: asyncio.Task[None] | None = None
        self._inbox = connection.client.new_inbox()
        self._name = self._inbox.rpartition(".")[2]
        self._subscription: Subscription | None = None

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._subscription = await self._connection.subscribe(f"{self._inbox}.*", self._on_acks)
        self._connection.on_reconnect.append(self._resume)
        self._connection.on_disconnect.append(self._on_disconnect)

    async def close(self) -> None:
        """Stop; no append is settled from now on."""
        self._connection.on_reconnect.remove(self._resume)
        self._connection.on_disconnect.remove(self._on_disconnect)
        for timer in (self._probe_timer, self._timeout_timer):
            if timer:
                timer.cancel()
        await self._tasks.cancel()
        if self._subscription:
            await self._subscription.cancel()

    def append(
        self, appends: Sequence[AppendRequest], settle: Callable[[list[AppendOutcome]], None]
    ) -> None:
        """See ``Journal.append``."""
        self.counters.appends += len(appends)
        ready: list[InFlightAppend] = []
        unchecked: list[InFlightAppend] = []
        without_term: list[InFlightAppend] = []
        for append in appends:
            in_flight = self._new_in_flight(append, settle)
            self._unsettled.add(in_flight)
            if not in_flight.subject:
                without_term.append(in_flight)
            else:
                (ready if self._is_exact(append) else unchecked).append(in_flight)
        self._send(ready)
        self._settle_superseded(without_term)
        if unchecked:
            self._tasks.start(self._check_fenced(unchecked))

    def supersede_all(self) -> None:
        """Settle every append of a term as superseded, because its term may have ended."""
        self._settle_superseded([one for one in self._unsettled if one.term])

    def _new_in_flight(
        self, append: AppendRequest, settle: Callable[[list[AppendOutcome]], None]
    ) -> InFlightAppend:
        """An append belongs to the term in which it was decided, however often it is sent."""
        entity = append.entity
        if entity.family == NODE_FAMILY:
            return InFlightAppend(append, settle, self._subjects.append_of_node(entity), None)
        partition = partition_of(entity.key)
        if (term := self._terms.term_of(partition)) is None:
            return InFlightAppend(append, settle, "", None)
        return InFlightAppend(
            append, settle, self._subjects.append(term, entity), (partition, term)
        )

    def _is_exact(self, append: AppendRequest) -> bool:
        """Whether the server's one comparison checks all expectations of the append."""
        if append.fence is None or append.fence == append.expected:
            return True
        return self._own_tail.has_no_message_of(append.entity, append.expected, append.fence)

    # Out.

    def _send(self, waiting: list[InFlightAppend]) -> None:
        waiting = [one for one in waiting if one in self._unsettled]
        if self.pressure is not Backpressure.NONE:
            self._requeue(waiting, self.pressure)
            return
        while waiting:
            group, waiting = next_group(waiting)
            self._send_group(group)

    def _send_group(self, group: list[InFlightAppend]) -> None:
        over = self._batch_over
        if over is None or len(group) <= over:
            self._send_singles(group)
            return
        alone = [one for one in group if one.send_alone]
        if alone:
            self._send_singles(alone)
            self._send_group([one for one in group if not one.send_alone])
        else:
            self._send_batch(group)

    def _send_singles(self, group: list[InFlightAppend]) -> None:
        first = self._count + 1
        messages = [
            encode_single(one, self._subjects, f"{self._inbox}.{number}")
            for number, one in enumerate(group, first)
        ]
        self._count += len(group)
        try:
            sent = self._connection.send(messages)
        except Refused as refusal:
            self._isolate(group, refusal)
            return
        if not sent:
            self._requeue(group, Backpressure.UNREACHABLE)
            return
        deadline_s = self._deadline(max((one.tries for one in group), default=0))
        for number, one in enumerate(group, first):
            self._track(number, _Flight([one], deadline_s))

    def _send_batch(self, group: list[InFlightAppend]) -> None:
        self._count += 1
        number = self._count
        name, reply = f"{self._name}.{number}", f"{self._inbox}.{number}"
        try:
            sent = self._connection.send(encode_batch(group, self._subjects, name, reply))
        except Refused:
            self._halve(group)
            return
        if not sent:
            self._requeue(group, Backpressure.UNREACHABLE)
            return
        self.counters.batches += 1
        self._track(number, _Flight(group, self._deadline(0), is_batch=True))

    def _isolate(self, group: list[InFlightAppend], refusal: Refused) -> None:
        """Find the append that cannot be sent; the connection sends all messages or none."""
        if len(group) > 1:
            for half in halves(group):
                self._send_singles(half)
            return
        outcome = AppendRejected(group[0].append, refusal.code, refusal.message)
        self._settle([(group[0], outcome)])

    def _halve(self, group: list[InFlightAppend]) -> None:
        for half in halves(group):
            self._send_group(half)

    def _deadline(self, tries: int) -> float:
        """It grows from the third try on: a dead server of a cluster, which the others forward to
        for three seconds, may lose the first two."""
        return self._loop.time() + self._timeout_s * (1 << min(max(tries - 1, 0), 2))

    def _track(self, number: int, flight: _Flight) -> None:
        self._flights[number] = flight
        if self._timeout_timer is None:
            self._timeout_timer = self._loop.call_later(_TIMEOUT_CHECK_S, self._check_timeouts)

    # In.

    def _on_acks(self, messages: list[Message]) -> None:
        known: list[tuple[InFlightAppend, AppendOutcome]] = []
        for message in messages:
            flight = self._flights.pop(int(message.subject.rpartition(".")[2]), None)
            if flight is None:
                continue  # Timed out; the repeated append resolves the outcome.
            ack = decode_ack(message)
            if ack.verdict is AckVerdict.STORED:
                first = ack.sequence - len(flight.members) + 1
                for sequence, one in enumerate(flight.members, first):
                    self._own_tail.add(sequence, one.append.entity)
                    known.append((one, Appended(one.append, sequence)))
            else:
                self._on_not_stored(flight, ack.verdict, ack.description)
        self._settle(known)

    def _on_not_stored(self, flight: _Flight, verdict: AckVerdict, description: str) -> None:
        match verdict:
            case AckVerdict.FULL:
                self._requeue(flight.members, Backpressure.FULL)
            case AckVerdict.RETRY:
                self._requeue(flight.members, Backpressure.UNREACHABLE)
            case AckVerdict.NO_STREAM:
                self._requeue(flight.members, Backpressure.UNREACHABLE)
                if self._terms_check is None or self._terms_check.done():
                    self._terms_check = self._tasks.start(self._check_terms())
            case _ if flight.is_batch:
                self._halve(flight.members)
            case AckVerdict.TOO_LARGE:
                one = flight.members[0]
                self._settle([(one, AppendRejected(one.append, "PAYLOAD_TOO_LARGE", description))])
            case _:
                self._tasks.start(self._resolve(flight.members[0]))

    def _settle(self, known: Sequence[tuple[InFlightAppend, AppendOutcome]]) -> None:
        """Report outcomes: one call a caller, and only the first outcome of each append.

        The loop makes the calls, so that no caller is called back from inside ``append``.
        """
        known = [(waiting, outcome) for waiting, outcome in known if waiting in self._unsettled]
        if not known:
            return
        calls: dict[Callable[[list[AppendOutcome]], None], list[AppendOutcome]] = {}
        for waiting, outcome in known:
            self._unsettled.discard(waiting)
            calls.setdefault(waiting.settle, []).append(outcome)
            self.counters.conflicts += isinstance(outcome, Conflict)
        for settle, outcomes in calls.items():
            self._loop.call_soon(settle, outcomes)
        answered = [outcome for _, outcome in known if not isinstance(outcome, Superseded)]
        stored = any(isinstance(outcome, Appended) for outcome in answered)
        if stored or (answered and self.pressure is Backpressure.UNREACHABLE):
            self._resume()

    def _settle_superseded(self, waiting: Sequence[InFlightAppend]) -> None:
        self._settle([(one, Superseded(one.append)) for one in waiting])

    # Unknown outcomes.

    async def _check_terms(self) -> None:
        """Find the appends without a listening stream whose term has ended."""
        while True:
            try:
                current = await self._terms.current()
            except Failed:
                await asyncio.sleep(_PAUSE_S_MIN)
                continue
            break
        ended = [one for one in self._resend_queue if one.term and one.term not in current.items()]
        self._resend_queue = [one for one in self._resend_queue if one not in ended]
        await asyncio.gather(*map(self._final_check, ended))

    async def _final_check(self, waiting: InFlightAppend) -> None:
        """Settle an append of an ended term; it may be stored, with a lost ack."""
        try:
            async with asyncio.timeout(_FINAL_CHECK_S):
                outcome = await self._resolver.check_entity(waiting.append)
        except TimeoutError:
            outcome = None
        stored = isinstance(outcome, Appended)
        self.counters.lost_acks += stored
        self._settle([(waiting, outcome if outcome and stored else Superseded(waiting.append))])

    async def _check_fenced(self, waiting: list[InFlightAppend]) -> None:
        """Query whether the entities are unchanged up to the fence, then send their appends.

        The server compares one number a message, which for a fenced append is the fence.
        """
        answers = await asyncio.gather(
            *(self._resolver.check_entity(one.append) for one in waiting)
        )
        checked = list(zip(waiting, answers, strict=True))
        self._settle([(one, outcome) for one, outcome in checked if outcome])
        self._send([one for one, outcome in checked if outcome is None])

    async def _resolve(self, waiting: InFlightAppend) -> None:
        """Find out whether a stale append is our own message with a lost ack, or a conflict."""
        outcome = await self._resolver.resolve_stale(waiting.append)
        if outcome:
            self.counters.lost_acks += isinstance(outcome, Appended)
            self._settle([(waiting, outcome)])
            return
        # The leader's reply contradicts its refusal: a message was still in progress there.
        await asyncio.sleep(_PAUSE_S_MIN)
        self.counters.resent += 1
        self._send([waiting])

    # Outages.

    def _requeue(self, waiting: list[InFlightAppend], pressure: Backpressure) -> None:
        """Hold these appends until the server accepts appends again."""
        waiting = [one for one in waiting if one in self._unsettled]
        if not waiting:
            return
        self.pressure = pressure
        self._resend_queue += waiting
        if self._probe_timer is None and self._connection.connected:
            self._probe_timer = self._loop.call_later(self._pause.next_s(), self._probe)

    def _probe(self) -> None:
        self._probe_timer = None
        queued = [one for one in self._resend_queue if one in self._unsettled]
        probes, self._resend_queue = queued[:_PROBE_MESSAGES], queued[_PROBE_MESSAGES:]
        if not probes:
            self._resume()
            return
        self.counters.resent += len(probes)
        self._send_singles(probes)

    def _resume(self) -> None:
        """Send the held appends: the server accepts appends again."""
        if self.pressure is Backpressure.NONE:
            return
        self.pressure = Backpressure.NONE
        self._pause.reset()
        if self._probe_timer:
            self._probe_timer.cancel()
            self._probe_timer = None
        queued, self._resend_queue = self._resend_queue, []
        self.counters.resent += len(queued)
        self._send(queued)

    def _on_disconnect(self) -> None:
        self.pressure = Backpressure.UNREACHABLE
        self._own_tail.clear()
        self._expire(list(self._flights))

    def _check_timeouts(self) -> None:
        now_s = self._loop.time()
        late = [n for n, flight in self._flights.items() if flight.deadline_s <= now_s]
        self._expire(late)
        self._timeout_timer = None
        if self._flights:
            self._timeout_timer = self._loop.call_later(_TIMEOUT_CHECK_S, self._check_timeouts)

    def _expire(self, numbers: list[int]) -> None:
        """Requeue appends without an ack; their message ids make a repetition safe."""
        for number in numbers:
            members = self._flights.pop(number).members
            for one in members:
                one.send_alone, one.tries = True, one.tries + 1
            self._requeue(members, Backpressure.UNREACHABLE)
