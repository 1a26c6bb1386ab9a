"""Appends until their outcome is known: groups out, acks in, and every doubt resolved.

A group goes out as pipelined singles or, above ``batch_over`` messages, as one atomic batch. What
is refused as a batch is halved. What is not answered is sent again, alone and under the same
message id (a full server stores a batch in part and never answers: measured, 2.15.1); what is then
refused as stale may be our own message whose ack was lost, so the leader is asked
(``rookery.bus.journal.append_resolution``). Where no stream listens, the turn may have ended, so
the stream is asked (``rookery.bus.journal.writer_terms``). Which appends belong together is the
caller's business.

The end of the journal, as far back as every message is known to be our own.

A sequence is one message for ever, so acks that follow each other without a gap leave no room for
anybody else's. Whoever owns what does not matter here. It sends nothing and asks nobody; where it
knows too little, the server is to be asked (``rookery.bus.journal.append_resolution``).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

import msgspec

from rookery.bus.backoff import Backoff
from rookery.bus.journal.append_messages import (
    InFlightAppend,
    encode_batch,
    encode_single,
    halves,
    next_group,
)
from rookery.bus.journal.append_resolution import AppendResolver
from rookery.bus.journal.reader import JournalReader
from rookery.bus.journal.writer_terms import WriterTerms
from rookery.bus.nats import AckVerdict, Connection, Message, Subscription, decode_ack
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
from rookery.bus.task_set import TaskSet
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed, Refused

__all__ = ["AppendCounters", "Appender", "OwnTail"]

MESSAGES_MAX = 1_024
"""Of more, the oldest are forgotten; looking all through them is quicker than asking."""


class OwnTail:
    """Used on the loop."""

    def __init__(self) -> None:
        self._entities: deque[EntityId] = deque(maxlen=MESSAGES_MAX)
        self._end = 0

    def add(self, sequence: int, entity: EntityId) -> None:
        """The server said that a message of ours stands there."""
        if sequence != self._end + 1:
            self._entities.clear()
        self._entities.append(entity)
        self._end = sequence

    def clear(self) -> None:
        """The server may be another one from now on, and have another past."""
        self._entities.clear()

    def has_no_message_of(self, entity: EntityId, after: int, through: int) -> bool:
        """Whether it is certain that none of the entity's messages stands above ``after`` and up
        to ``through``."""
        before = self._end - len(self._entities)
        if not before <= after <= through <= self._end:
            return False
        return entity not in islice(self._entities, after - before, through - before)


_TIMEOUT_CHECK_S = 0.1
"""How often unanswered groups are looked for."""
_PAUSE_S_MIN = 0.05
_PAUSE_S_MAX = 1.0
_FINAL_CHECK_S = 1.0
"""How long it is asked whether an append was stored before its turn ended."""
_PROBE_MESSAGES = 16
"""So many appends try whether the trouble is over; the others wait for the first success."""


class AppendCounters(msgspec.Struct):
    """What has happened so far, for metrics."""

    appends: int = 0
    batches: int = 0
    conflicts: int = 0
    lost_acks: int = 0
    """Appends found stored although their ack never came."""
    resent: int = 0


class _Flight(NamedTuple):
    """What one ack will answer: a single, or all members of a batch."""

    members: list[InFlightAppend]
    deadline_s: float
    is_batch: bool = False


class Appender:
    """The writing half of the journal."""

    def __init__(
        self,
        connection: Connection,
        subjects: Subjects,
        reads: JournalReader,
        turns: WriterTerms,
        *,
        batch_over: int | None,
        timeout_s: float,
    ) -> None:
        self.pressure = Backpressure.NONE
        self.counters = AppendCounters()
        self._connection, self._subjects, self._terms = connection, subjects, turns
        self._resolver, self._own_tail = AppendResolver(reads), OwnTail()
        self._batch_over, self._timeout_s = batch_over, timeout_s
        self._loop: asyncio.AbstractEventLoop
        self._flights: dict[int, _Flight] = {}
        self._count = 0
        self._unsettled: set[InFlightAppend] = set()
        """Whatever nobody was told of."""
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
        """Nothing is settled from now on."""
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
        doubtful: list[InFlightAppend] = []
        ownerless: list[InFlightAppend] = []
        for append in appends:
            waiting = self._new_in_flight(append, settle)
            self._unsettled.add(waiting)
            if not waiting.subject:
                ownerless.append(waiting)
            else:
                (ready if self._is_exact(append) else doubtful).append(waiting)
        self._send(ready)
        self._settle_superseded(ownerless)
        if doubtful:
            self._tasks.start(self._check_fenced(doubtful))

    def supersede_all(self) -> None:
        """No append goes on whose turn may have ended: each is told so, and not sent again."""
        self._settle_superseded([one for one in self._unsettled if one.term])

    def _new_in_flight(
        self, append: AppendRequest, settle: Callable[[list[AppendOutcome]], None]
    ) -> InFlightAppend:
        """An append belongs to the turn in which it was decided, however often it is sent."""
        entity = append.entity
        if entity.family == NODE_FAMILY:
            return InFlightAppend(append, settle, self._subjects.append_of_node(entity), None)
        partition = partition_of(entity.key)
        if (turn := self._terms.term_of(partition)) is None:
            return InFlightAppend(append, settle, "", None)
        return InFlightAppend(
            append, settle, self._subjects.append(turn, entity), (partition, turn)
        )

    def _is_exact(self, append: AppendRequest) -> bool:
        """Whether the one number that the server compares says all that is expected."""
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
        """The connection takes all or none: find the append that cannot be sent at all."""
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
        return self._loop.time() + self._timeout_s * (1 << min(tries, 2))

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
                continue  # Given up on: the repeated append finds out what happened.
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
        """One call a caller, and one outcome an append: a later one is dropped. By the loop, so
        that no caller is called back from inside ``append``."""
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

    # Doubt.

    async def _check_terms(self) -> None:
        """Of what no stream listened to, find what belongs to a turn that has ended."""
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
        """It may have been stored while its turn lasted, and only the ack was lost."""
        try:
            async with asyncio.timeout(_FINAL_CHECK_S):
                outcome = await self._resolver.check_entity(waiting.append)
        except TimeoutError:
            outcome = None
        stored = isinstance(outcome, Appended)
        self.counters.lost_acks += stored
        self._settle([(waiting, outcome if outcome and stored else Superseded(waiting.append))])

    async def _check_fenced(self, waiting: list[InFlightAppend]) -> None:
        """The server compares one number a message: of a fenced append the fence. That the entity
        itself has not moved since it was decided on, up to the fence, is asked before, unless it is
        known."""
        answers = await asyncio.gather(
            *(self._resolver.check_entity(one.append) for one in waiting)
        )
        asked = list(zip(waiting, answers, strict=True))
        self._settle([(one, outcome) for one, outcome in asked if outcome])
        self._send([one for one, outcome in asked if outcome is None])

    async def _resolve(self, waiting: InFlightAppend) -> None:
        """The expectation failed: a lost ack of our own message, or another writer?"""
        outcome = await self._resolver.resolve_stale(waiting.append)
        if outcome:
            self.counters.lost_acks += isinstance(outcome, Appended)
            self._settle([(waiting, outcome)])
            return
        # The leader's word and its refusal disagree: something was still under way there.
        await asyncio.sleep(_PAUSE_S_MIN)
        self.counters.resent += 1
        self._send([waiting])

    # Trouble.

    def _requeue(self, waiting: list[InFlightAppend], pressure: Backpressure) -> None:
        """Keep these until the server takes appends again."""
        waiting = [one for one in waiting if one in self._unsettled]
        if not waiting:
            return
        self.pressure = pressure
        self._resend_queue += waiting
        if self._probe_timer is None and self._connection.connected:
            self._probe_timer = self._loop.call_later(self._pause.next_s(), self._probe)

    def _probe(self) -> None:
        self._probe_timer = None
        again = [one for one in self._resend_queue if one in self._unsettled]
        probes, self._resend_queue = again[:_PROBE_MESSAGES], again[_PROBE_MESSAGES:]
        if not probes:
            self._resume()
            return
        self.counters.resent += len(probes)
        self._send_singles(probes)

    def _resume(self) -> None:
        """Whatever was the trouble is over."""
        if self.pressure is Backpressure.NONE:
            return
        self.pressure = Backpressure.NONE
        self._pause.reset()
        if self._probe_timer:
            self._probe_timer.cancel()
            self._probe_timer = None
        again, self._resend_queue = self._resend_queue, []
        self.counters.resent += len(again)
        self._send(again)

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
        """No ack is expected any more. Message ids make sending again safe."""
        for number in numbers:
            members = self._flights.pop(number).members
            for one in members:
                one.send_alone, one.tries = True, one.tries + 1
            self._requeue(members, Backpressure.UNREACHABLE)
