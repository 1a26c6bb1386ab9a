"""Appends until their outcome is known: groups out, acks in, and every doubt resolved.

A group goes out as pipelined singles or, above ``batch_over`` messages, as one atomic batch. What
is refused as a batch is halved. What is not answered is sent again, alone and under the same
message id (a full server stores a batch in part and never answers: measured, 2.15.1); what is then
refused as stale may be our own message whose ack was lost, so the leader is asked
(``rookery.bus.journal.append_resolution``). Where no stream listens, the turn may have ended, so
the stream is asked (``rookery.bus.journal.writer_terms``). Which appends belong together is the
caller's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

import msgspec

from rookery.bus.journal.append_messages import (
    Verdict,
    Waiting,
    ack_of,
    batch,
    halves,
    next_group,
    single,
)
from rookery.bus.journal.append_resolution import Doubts
from rookery.bus.journal.own_tail import OwnStretch
from rookery.bus.journal.reader import JournalReads
from rookery.bus.journal.writer_terms import Turns
from rookery.bus.nats.connection import Connection, Message, Subscription
from rookery.bus.ports import (
    Append,
    Conflicted,
    Displaced,
    Outcome,
    Pressure,
    Rejected,
    Settled,
)
from rookery.bus.subjects import NODE_FAMILY, Subjects, partition_of
from rookery.schemas.errors import Failed, Refused

__all__ = ["Appender", "Counters"]

_LOOK_S = 0.1
"""How often unanswered groups are looked for."""
_PAUSE_S_MIN = 0.05
_PAUSE_S_MAX = 1.0
_LAST_LOOK_S = 1.0
"""How long it is asked whether an append was stored before its turn ended."""
_PROBE_MESSAGES = 16
"""So many appends try whether the trouble is over; the others wait for the first success."""


class Counters(msgspec.Struct):
    """What has happened so far, for metrics."""

    appends: int = 0
    batches: int = 0
    conflicts: int = 0
    lost_acks: int = 0
    """Appends found stored although their ack never came."""
    resent: int = 0


class _Flight(NamedTuple):
    """What one ack will answer: a single, or all members of a batch."""

    members: list[Waiting]
    deadline_s: float
    is_batch: bool = False


class Appender:
    """The writing half of the journal."""

    def __init__(
        self,
        connection: Connection,
        subjects: Subjects,
        reads: JournalReads,
        turns: Turns,
        *,
        batch_over: int | None,
        timeout_s: float,
    ) -> None:
        self.pressure = Pressure.NONE
        self.counters = Counters()
        self._connection, self._subjects, self._turns = connection, subjects, turns
        self._doubts, self._own = Doubts(reads), OwnStretch()
        self._batch_over, self._timeout_s = batch_over, timeout_s
        self._loop: asyncio.AbstractEventLoop
        self._flights: dict[int, _Flight] = {}
        self._count = 0
        self._open: set[Waiting] = set()
        """Whatever nobody was told of."""
        self._again: list[Waiting] = []
        self._pause_s = _PAUSE_S_MIN
        self._probe_timer: asyncio.TimerHandle | None = None
        self._look_timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._checking: asyncio.Task[None] | None = None
        self._inbox = connection.client.new_inbox()
        self._name = self._inbox.rpartition(".")[2]
        self._subscription: Subscription | None = None

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._subscription = await self._connection.subscribe(f"{self._inbox}.*", self._on_acks)
        self._connection.on_up.append(self._calm)
        self._connection.on_down.append(self._went_down)

    async def close(self) -> None:
        """Nothing is settled from now on."""
        self._connection.on_up.remove(self._calm)
        self._connection.on_down.remove(self._went_down)
        for timer in (self._probe_timer, self._look_timer):
            if timer:
                timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._subscription:
            await self._subscription.cancel()

    def append(self, appends: Sequence[Append], settle: Callable[[list[Outcome]], None]) -> None:
        """See ``Journal.append``."""
        self.counters.appends += len(appends)
        ready: list[Waiting] = []
        doubtful: list[Waiting] = []
        ownerless: list[Waiting] = []
        for append in appends:
            waiting = self._addressed(append, settle)
            self._open.add(waiting)
            if not waiting.subject:
                ownerless.append(waiting)
            else:
                (ready if self._is_exact(append) else doubtful).append(waiting)
        self._send(ready)
        self._displace(ownerless)
        if doubtful:
            self._spawn(self._vet(doubtful))

    def displace(self) -> None:
        """No append goes on whose turn may have ended: each is told so, and not sent again."""
        self._displace([one for one in self._open if one.turn])

    def _addressed(self, append: Append, settle: Callable[[list[Outcome]], None]) -> Waiting:
        """An append belongs to the turn in which it was decided, however often it is sent."""
        entity = append.entity
        if entity.family == NODE_FAMILY:
            return Waiting(append, settle, self._subjects.append_of_node(entity), None)
        partition = partition_of(entity.key)
        if (turn := self._turns.of(partition)) is None:
            return Waiting(append, settle, "", None)
        return Waiting(append, settle, self._subjects.append(turn, entity), (partition, turn))

    def _is_exact(self, append: Append) -> bool:
        """Whether the one number that the server compares says all that is expected."""
        if append.fence is None or append.fence == append.expected:
            return True
        return self._own.excludes(append.entity, append.expected, append.fence)

    # Out.

    def _send(self, waiting: list[Waiting]) -> None:
        waiting = [one for one in waiting if one in self._open]
        if self.pressure is not Pressure.NONE:
            self._later(waiting, self.pressure)
            return
        while waiting:
            group, waiting = next_group(waiting)
            self._send_group(group)

    def _send_group(self, group: list[Waiting]) -> None:
        over = self._batch_over
        if over is None or len(group) <= over:
            self._send_singles(group)
            return
        alone = [one for one in group if one.alone]
        if alone:
            self._send_singles(alone)
            self._send_group([one for one in group if not one.alone])
        else:
            self._send_batch(group)

    def _send_singles(self, group: list[Waiting]) -> None:
        first = self._count + 1
        messages = [
            single(one, self._subjects, f"{self._inbox}.{number}")
            for number, one in enumerate(group, first)
        ]
        self._count += len(group)
        try:
            sent = self._connection.send(messages)
        except Refused as refusal:
            self._isolate(group, refusal)
            return
        if not sent:
            self._later(group, Pressure.UNREACHABLE)
            return
        deadline_s = self._deadline(max((one.tries for one in group), default=0))
        for number, one in enumerate(group, first):
            self._await(number, _Flight([one], deadline_s))

    def _send_batch(self, group: list[Waiting]) -> None:
        self._count += 1
        number = self._count
        name, reply = f"{self._name}.{number}", f"{self._inbox}.{number}"
        try:
            sent = self._connection.send(batch(group, self._subjects, name, reply))
        except Refused:
            self._halve(group)
            return
        if not sent:
            self._later(group, Pressure.UNREACHABLE)
            return
        self.counters.batches += 1
        self._await(number, _Flight(group, self._deadline(0), is_batch=True))

    def _isolate(self, group: list[Waiting], refusal: Refused) -> None:
        """The connection takes all or none: find the append that cannot be sent at all."""
        if len(group) > 1:
            for half in halves(group):
                self._send_singles(half)
            return
        outcome = Rejected(group[0].append, refusal.code, refusal.message)
        self._tell([(group[0], outcome)])

    def _halve(self, group: list[Waiting]) -> None:
        for half in halves(group):
            self._send_group(half)

    def _deadline(self, tries: int) -> float:
        return self._loop.time() + self._timeout_s * (1 << min(tries, 2))

    def _await(self, number: int, flight: _Flight) -> None:
        self._flights[number] = flight
        if self._look_timer is None:
            self._look_timer = self._loop.call_later(_LOOK_S, self._look)

    # In.

    def _on_acks(self, messages: list[Message]) -> None:
        known: list[tuple[Waiting, Outcome]] = []
        for message in messages:
            flight = self._flights.pop(int(message.subject.rpartition(".")[2]), None)
            if flight is None:
                continue  # Given up on: the repeated append finds out what happened.
            ack = ack_of(message)
            if ack.verdict is Verdict.STORED:
                first = ack.sequence - len(flight.members) + 1
                for sequence, one in enumerate(flight.members, first):
                    self._own.note(sequence, one.append.entity)
                    known.append((one, Settled(one.append, sequence)))
            else:
                self._not_stored(flight, ack.verdict, ack.description)
        self._tell(known)

    def _not_stored(self, flight: _Flight, verdict: Verdict, description: str) -> None:
        match verdict:
            case Verdict.FULL:
                self._later(flight.members, Pressure.FULL)
            case Verdict.LATER:
                self._later(flight.members, Pressure.UNREACHABLE)
            case Verdict.NOBODY:
                self._later(flight.members, Pressure.UNREACHABLE)
                if self._checking is None or self._checking.done():
                    self._checking = self._spawn(self._check_turns())
            case _ if flight.is_batch:
                self._halve(flight.members)
            case Verdict.TOO_LARGE:
                one = flight.members[0]
                self._tell([(one, Rejected(one.append, "PAYLOAD_TOO_LARGE", description))])
            case _:
                self._spawn(self._resolve(flight.members[0]))

    def _tell(self, known: Sequence[tuple[Waiting, Outcome]]) -> None:
        """One call a caller, and one outcome an append: a later one is dropped. By the loop, so
        that no caller is called back from inside ``append``."""
        known = [(waiting, outcome) for waiting, outcome in known if waiting in self._open]
        if not known:
            return
        calls: dict[Callable[[list[Outcome]], None], list[Outcome]] = {}
        for waiting, outcome in known:
            self._open.discard(waiting)
            calls.setdefault(waiting.settle, []).append(outcome)
            self.counters.conflicts += isinstance(outcome, Conflicted)
        for settle, outcomes in calls.items():
            self._loop.call_soon(settle, outcomes)
        answered = [outcome for _, outcome in known if not isinstance(outcome, Displaced)]
        stored = any(isinstance(outcome, Settled) for outcome in answered)
        if stored or (answered and self.pressure is Pressure.UNREACHABLE):
            self._calm()

    def _displace(self, waiting: Sequence[Waiting]) -> None:
        self._tell([(one, Displaced(one.append)) for one in waiting])

    # Doubt.

    async def _check_turns(self) -> None:
        """Of what no stream listened to, find what belongs to a turn that has ended."""
        while True:
            try:
                current = await self._turns.current()
            except Failed:
                await asyncio.sleep(_PAUSE_S_MIN)
                continue
            break
        ended = [one for one in self._again if one.turn and one.turn not in current.items()]
        self._again = [one for one in self._again if one not in ended]
        await asyncio.gather(*map(self._look_once_more, ended))

    async def _look_once_more(self, waiting: Waiting) -> None:
        """It may have been stored while its turn lasted, and only the ack was lost."""
        try:
            async with asyncio.timeout(_LAST_LOOK_S):
                outcome = await self._doubts.entity_moved(waiting.append)
        except TimeoutError:
            outcome = None
        stored = isinstance(outcome, Settled)
        self.counters.lost_acks += stored
        self._tell([(waiting, outcome if outcome and stored else Displaced(waiting.append))])

    async def _vet(self, waiting: list[Waiting]) -> None:
        """The server compares one number a message: of a fenced append the fence. That the entity
        itself has not moved since it was decided on, up to the fence, is asked before, unless it is
        known."""
        answers = await asyncio.gather(*(self._doubts.entity_moved(one.append) for one in waiting))
        asked = list(zip(waiting, answers, strict=True))
        self._tell([(one, outcome) for one, outcome in asked if outcome])
        self._send([one for one, outcome in asked if outcome is None])

    async def _resolve(self, waiting: Waiting) -> None:
        """The expectation failed: a lost ack of our own message, or another writer?"""
        outcome = await self._doubts.refused(waiting.append)
        if outcome:
            self.counters.lost_acks += isinstance(outcome, Settled)
            self._tell([(waiting, outcome)])
            return
        # The leader's word and its refusal disagree: something was still under way there.
        await asyncio.sleep(_PAUSE_S_MIN)
        self.counters.resent += 1
        self._send([waiting])

    # Trouble.

    def _later(self, waiting: list[Waiting], pressure: Pressure) -> None:
        """Keep these until the server takes appends again."""
        waiting = [one for one in waiting if one in self._open]
        if not waiting:
            return
        self.pressure = pressure
        self._again += waiting
        if self._probe_timer is None and self._connection.connected:
            self._probe_timer = self._loop.call_later(self._pause_s, self._probe)
            self._pause_s = min(2 * self._pause_s, _PAUSE_S_MAX)

    def _probe(self) -> None:
        self._probe_timer = None
        again = [one for one in self._again if one in self._open]
        probes, self._again = again[:_PROBE_MESSAGES], again[_PROBE_MESSAGES:]
        if not probes:
            self._calm()
            return
        self.counters.resent += len(probes)
        self._send_singles(probes)

    def _calm(self) -> None:
        """Whatever was the trouble is over."""
        if self.pressure is Pressure.NONE:
            return
        self.pressure, self._pause_s = Pressure.NONE, _PAUSE_S_MIN
        if self._probe_timer:
            self._probe_timer.cancel()
            self._probe_timer = None
        again, self._again = self._again, []
        self.counters.resent += len(again)
        self._send(again)

    def _went_down(self) -> None:
        self.pressure = Pressure.UNREACHABLE
        self._own.forget()
        self._give_up(list(self._flights))

    def _look(self) -> None:
        now_s = self._loop.time()
        late = [n for n, flight in self._flights.items() if flight.deadline_s <= now_s]
        self._give_up(late)
        self._look_timer = None
        if self._flights:
            self._look_timer = self._loop.call_later(_LOOK_S, self._look)

    def _give_up(self, numbers: list[int]) -> None:
        """No ack is expected any more. Message ids make sending again safe."""
        for number in numbers:
            members = self._flights.pop(number).members
            for one in members:
                one.alone, one.tries = True, one.tries + 1
            self._later(members, Pressure.UNREACHABLE)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
