"""The inbox and the timers in memory, with the rules of ``rookery.bus.commands``.

``MemoryCommands`` is the server's state of a realm, ``MemoryInbox`` one bus's view of it. The event
loop delivers batches, never a call to the inbox. All buses of a server share the timers. Tests may
set the clock, so the loop checks it every few milliseconds while a timer is armed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count, islice

import msgspec

from rookery.bus.commands.command_messages import is_reply_subject
from rookery.bus.commands.inbox import check_timer, dead_letter_not_found, reason_line
from rookery.bus.commands.redelivery import (
    ATTEMPTS_MAX,
    BATCH_MESSAGES_MAX,
    PartitionCursor,
    PreviousOwnerState,
    SuspectGate,
)
from rookery.bus.ports import PARTITIONS, DeadLetter, Delivery, EnvelopeProof, InboxPosition, Timer
from rookery.bus.ports.commands import NO_PROOF
from rookery.bus.subjects import encode_token, partition_of
from rookery.schemas.errors import Failed

__all__ = ["MemoryCommands", "MemoryInbox", "MemoryTimers"]

Deliver = Callable[[list[Delivery]], None]


class MemoryCommands:
    """All commands and dead letters of a realm."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._sequences = count(1)
        self._numbers = count(1)
        self.partitions = [_MemoryPartition() for _ in range(PARTITIONS)]
        self.dead_letters: dict[int, tuple[DeadLetter, Delivery]] = {}

    def put(self, command: Delivery, source: str = "inbox") -> int:
        """Store a command behind all others and return its sequence."""
        encode_token(command.verb)
        partition, sequence = partition_of(command.key), next(self._sequences)
        position = InboxPosition(partition, sequence, source)
        command_id = command.id or f"inbox.{sequence}"
        self.partitions[partition].put(
            msgspec.structs.replace(
                command, id=command_id, position=position, arrived_ms=self._now_ms()
            )
        )
        return sequence

    def add_dead_letter(self, dead: Delivery, code: str, message: str) -> int:
        position = dead.position
        for number, (_, buried) in self.dead_letters.items():
            if position is not None and buried.position == position:
                return number
        number = next(self._numbers)
        letter = DeadLetter(
            number=number,
            verb=dead.verb,
            key=dead.key,
            id=dead.id,
            code=code,
            message=reason_line(message),
            body=dead.body,
            content_type=dead.content_type,
            mode=dead.mode,
            input_source=dead.input_source,
            reply_to=dead.reply_to,
            traceparent=dead.traceparent,
            buried_at_ms=self._now_ms(),
        )
        self.dead_letters[number] = letter, dead
        return number


class _MemoryPartition:
    """One partition: its stored commands and its consumer."""

    def __init__(self) -> None:
        self.messages: deque[Delivery] = deque()
        """Unacknowledged commands, by sequence."""
        self.previous_state = PreviousOwnerState(began=0, floor=0, delivered=0)
        self.owner: _MemoryPartitionConsumer | None = None

    def put(self, command: Delivery) -> None:
        self.messages.append(command)
        if self.owner is not None:
            self.owner.wake()


class _MemoryPartitionConsumer:
    """One node's consumer of a partition, until another node opens the partition."""

    def __init__(
        self, share: _MemoryPartition, deliver: Deliver, commands: MemoryCommands, gate: SuspectGate
    ) -> None:
        self._partition, self._deliver, self._commands, self._suspect_gate = (
            share,
            deliver,
            commands,
            gate,
        )
        self._loop = asyncio.get_running_loop()
        self._cursor = PartitionCursor.after(share.previous_state)
        self._working: set[int] = set()
        self._last = 0
        share.owner = self
        self._save_state(began=self._cursor.floor, delivered=self._cursor.floor, orderly=False)
        self.wake()

    @property
    def is_taken_over(self) -> bool:
        return self._partition.owner is not self

    def wake(self) -> None:
        self._loop.call_soon(self._deliver_next)

    def release(self) -> None:
        self._suspect_gate.exit(self)
        if self._partition.owner is self:
            self._partition.owner = None
            self._save_state(orderly=True)

    def done(self, sequence: int) -> None:
        if sequence not in self._working:
            return
        self._working.remove(sequence)
        if self._working:
            return
        self._suspect_gate.exit(self)
        if self._partition.owner is not self:
            return
        self._cursor.mark_done(self._last)
        self._save_state(floor=self._last)
        messages = self._partition.messages
        while messages and _sequence(messages[0]) <= self._last:
            messages.popleft()
        self.wake()

    def _deliver_next(self) -> None:
        if self._working or not self._partition.messages:
            return
        if self._cursor.must_deliver_alone:
            self._suspect_gate.enter(self, self._deliver_batch)
        else:
            self._deliver_batch()

    def _deliver_batch(self) -> None:
        if self._partition.owner is not self:
            self._suspect_gate.exit(self)
            return
        most = 1 if self._cursor.must_deliver_alone else BATCH_MESSAGES_MAX
        batch = [self._delivery(stored) for stored in islice(self._partition.messages, most)]
        self._working = {_sequence(delivery) for delivery in batch}
        self._last = _sequence(batch[-1])
        self._save_state(delivered=self._last)
        if batch[0].attempt > ATTEMPTS_MAX:
            reason = f"its node died {batch[0].attempt - 1} times while working on it"
            self._commands.add_dead_letter(batch[0], "COMMAND_QUARANTINED", reason)
            self.done(self._last)
        else:
            self._deliver(batch)

    def _delivery(self, stored: Delivery) -> Delivery:
        attempt = self._cursor.attempt(_sequence(stored))
        return msgspec.structs.replace(stored, attempt=attempt)

    def _save_state(self, **changes: int) -> None:
        self._partition.previous_state = msgspec.structs.replace(
            self._partition.previous_state,
            suspects_to=self._cursor.suspects_to,
            deaths=self._cursor.deaths,
            **changes,
        )


class MemoryInbox:
    """Port ``Inbox``."""

    def __init__(self, commands: MemoryCommands) -> None:
        self._commands = commands
        self._suspect_gate = SuspectGate()
        self._consumers: dict[int, _MemoryPartitionConsumer] = {}

    async def open(self, partition: int, deliver: Deliver) -> None:
        if partition in self._consumers:
            raise RuntimeError(f"partition {partition} is open already")
        share = self._commands.partitions[partition]
        self._consumers[partition] = _MemoryPartitionConsumer(
            share, deliver, self._commands, self._suspect_gate
        )

    def done(self, positions: Sequence[InboxPosition]) -> None:
        for position in positions:
            line = self._consumers.get(position.partition)
            if line is not None:
                line.done(position.sequence)

    async def close(self, partition: int) -> None:
        line = self._consumers.pop(partition, None)
        if line is not None:
            line.release()

    def partitions_taken_over(self) -> frozenset[int]:
        return frozenset(p for p, line in self._consumers.items() if line.is_taken_over)

    async def stop(self) -> None:
        """Close the open partitions."""
        for partition in list(self._consumers):
            await self.close(partition)

    async def submit(
        self,
        verb: str,
        key: str,
        body: bytes,
        *,
        message_id: str,
        content_type: str = "",
        mode: str = "",
        reply_to: str = "",
        traceparent: str = "",
        identity: str = "",
        proof: EnvelopeProof = NO_PROOF,
        realm: str = "",
    ) -> int:
        del realm  # A server in memory has one.
        command = Delivery(
            verb=verb,
            key=key,
            id=message_id,
            body=body,
            content_type=content_type,
            mode=mode,
            reply_to=reply_to if is_reply_subject(reply_to) else "",
            traceparent=traceparent,
            identity=identity,
            proof=proof,
        )
        return self._commands.put(command)

    async def give_to_client(
        self, client: str, body: bytes, *, message_id: str, proof: EnvelopeProof
    ) -> None:
        del body, message_id, proof
        raise Failed("NO_ANSWER", f"the client {client} does not listen")

    async def dead_letter(self, delivery: Delivery, code: str, message: str) -> int:
        return self._commands.add_dead_letter(delivery, code, message)

    async def dead_letters(self) -> list[DeadLetter]:
        return [letter for letter, _ in self._commands.dead_letters.values()]

    async def retry_dead_letter(self, number: int) -> None:
        if number not in self._commands.dead_letters:
            raise dead_letter_not_found(number)
        _, command = self._commands.dead_letters.pop(number)
        self._commands.put(command, command.position.source if command.position else "inbox")

    async def drop_dead_letter(self, number: int) -> None:
        if self._commands.dead_letters.pop(number, None) is None:
            raise dead_letter_not_found(number)


def _sequence(delivery: Delivery) -> int:
    assert delivery.position is not None
    return delivery.position.sequence


_CHECK_S = 0.01


class MemoryTimers:
    """Port ``Timers``."""

    def __init__(self, commands: MemoryCommands, now_ms: Callable[[], int]) -> None:
        self._commands, self._now_ms = commands, now_ms
        self._armed: dict[str, Timer] = {}
        self._next_check: asyncio.TimerHandle | None = None

    async def arm(self, timer: Timer) -> None:
        check_timer(timer)
        for token in (timer.id, timer.verb, timer.key):
            encode_token(token)
        self._armed[timer.id] = timer
        self._fire_due()

    async def cancel(self, timer_id: str) -> None:
        self._armed.pop(timer_id, None)

    def _fire_due(self) -> None:
        if self._next_check is not None:
            self._next_check.cancel()
            self._next_check = None
        now_ms = self._now_ms()
        due = [timer for timer in self._armed.values() if timer.due_ms <= now_ms]
        for timer in sorted(due, key=lambda timer: timer.due_ms):
            del self._armed[timer.id]
            self._fire(timer)
        if self._armed:
            self._next_check = asyncio.get_running_loop().call_later(_CHECK_S, self._fire_due)

    def _fire(self, timer: Timer) -> None:
        command = Delivery(timer.verb, timer.key, check_timer(timer), timer.body)
        self._commands.put(command, "timers")
