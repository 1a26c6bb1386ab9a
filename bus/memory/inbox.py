"""The inbox in memory: the twin of ``rookery.bus.commands.inbox``, by the same rules of taking
over.

``MemoryCommands`` is what a realm's server keeps, ``MemoryInbox`` what one bus sees of it. Batches
are delivered by the event loop, never from inside a call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count, islice

import msgspec

from rookery.bus.commands.dead_letters import letter_not_found, reason_line
from rookery.bus.commands.headers import answerable
from rookery.bus.commands.redelivery import ATTEMPTS_MAX, BATCH_MESSAGES_MAX, Cursor, Gate, Left
from rookery.bus.ports import PARTITIONS, DeadLetter, Delivery, Position
from rookery.bus.subjects import encode_token, partition_of

__all__ = ["MemoryCommands", "MemoryInbox"]

Deliver = Callable[[list[Delivery]], None]


class MemoryCommands:
    """All commands and dead letters of a realm."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._sequences = count(1)
        self._numbers = count(1)
        self.shares = [_Share() for _ in range(PARTITIONS)]
        self.letters: dict[int, tuple[DeadLetter, Delivery]] = {}

    def put(self, command: Delivery, source: str = "inbox") -> int:
        """Store a command behind all others; its sequence."""
        encode_token(command.verb)
        partition, sequence = partition_of(command.key), next(self._sequences)
        position = Position(partition, sequence, source)
        command_id = command.id or f"inbox.{sequence}"
        self.shares[partition].put(
            msgspec.structs.replace(
                command, id=command_id, position=position, arrived_ms=self._now_ms()
            )
        )
        return sequence

    def bury(self, dead: Delivery, code: str, message: str) -> int:
        position = dead.position
        for number, (_, buried) in self.letters.items():
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
            reply_to=dead.reply_to,
            traceparent=dead.traceparent,
            buried_at_ms=self._now_ms(),
        )
        self.letters[number] = letter, dead
        return number


class _Share:
    """One partition: what stands in it and who works it off."""

    def __init__(self) -> None:
        self.messages: deque[Delivery] = deque()
        """What is not done, by sequence."""
        self.left = Left(began=0, floor=0, delivered=0)
        self.owner: _Line | None = None

    def put(self, command: Delivery) -> None:
        self.messages.append(command)
        if self.owner is not None:
            self.owner.wake()


class _Line:
    """An owner of a partition, until another one comes."""

    def __init__(
        self, share: _Share, deliver: Deliver, commands: MemoryCommands, gate: Gate
    ) -> None:
        self._share, self._deliver, self._commands, self._gate = share, deliver, commands, gate
        self._loop = asyncio.get_running_loop()
        self._cursor = Cursor.after(share.left)
        self._working: set[int] = set()
        self._last = 0
        share.owner = self
        self._note(began=self._cursor.floor, delivered=self._cursor.floor, orderly=False)
        self.wake()

    @property
    def displaced(self) -> bool:
        return self._share.owner is not self

    def wake(self) -> None:
        self._loop.call_soon(self._next)

    def leave(self) -> None:
        self._gate.leave(self)
        if self._share.owner is self:
            self._share.owner = None
            self._note(orderly=True)

    def done(self, sequence: int) -> None:
        if sequence not in self._working:
            return
        self._working.remove(sequence)
        if self._working:
            return
        self._gate.leave(self)
        if self._share.owner is not self:
            return
        self._cursor.done_to(self._last)
        self._note(floor=self._last)
        messages = self._share.messages
        while messages and _sequence(messages[0]) <= self._last:
            messages.popleft()
        self.wake()

    def _next(self) -> None:
        if self._working or not self._share.messages:
            return
        if self._cursor.alone:
            self._gate.enter(self, self._hand_over)
        else:
            self._hand_over()

    def _hand_over(self) -> None:
        if self._share.owner is not self:
            self._gate.leave(self)
            return
        most = 1 if self._cursor.alone else BATCH_MESSAGES_MAX
        batch = [self._delivery(stored) for stored in islice(self._share.messages, most)]
        self._working = {_sequence(delivery) for delivery in batch}
        self._last = _sequence(batch[-1])
        self._note(delivered=self._last)
        if batch[0].attempt > ATTEMPTS_MAX:
            reason = f"its node died {batch[0].attempt - 1} times while working on it"
            self._commands.bury(batch[0], "COMMAND_QUARANTINED", reason)
            self.done(self._last)
        else:
            self._deliver(batch)

    def _delivery(self, stored: Delivery) -> Delivery:
        attempt = self._cursor.attempt(_sequence(stored))
        return msgspec.structs.replace(stored, attempt=attempt)

    def _note(self, **changes: int) -> None:
        self._share.left = msgspec.structs.replace(
            self._share.left,
            suspects_to=self._cursor.suspects_to,
            deaths=self._cursor.deaths,
            **changes,
        )


class MemoryInbox:
    """Port ``Inbox``."""

    def __init__(self, commands: MemoryCommands) -> None:
        self._commands = commands
        self._gate = Gate()
        self._lines: dict[int, _Line] = {}

    async def open(self, partition: int, deliver: Deliver) -> None:
        if partition in self._lines:
            raise RuntimeError(f"partition {partition} is open already")
        share = self._commands.shares[partition]
        self._lines[partition] = _Line(share, deliver, self._commands, self._gate)

    def done(self, positions: Sequence[Position]) -> None:
        for position in positions:
            line = self._lines.get(position.partition)
            if line is not None:
                line.done(position.sequence)

    async def close(self, partition: int) -> None:
        line = self._lines.pop(partition, None)
        if line is not None:
            line.leave()

    def displaced(self) -> frozenset[int]:
        return frozenset(p for p, line in self._lines.items() if line.displaced)

    async def stop(self) -> None:
        """Close what is open."""
        for partition in list(self._lines):
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
    ) -> int:
        command = Delivery(
            verb=verb,
            key=key,
            id=message_id,
            body=body,
            content_type=content_type,
            mode=mode,
            reply_to=reply_to if answerable(reply_to) else "",
            traceparent=traceparent,
        )
        return self._commands.put(command)

    async def bury(self, delivery: Delivery, code: str, message: str) -> int:
        return self._commands.bury(delivery, code, message)

    async def dead(self) -> list[DeadLetter]:
        return [letter for letter, _ in self._commands.letters.values()]

    async def retry_dead(self, number: int) -> None:
        if number not in self._commands.letters:
            raise letter_not_found(number)
        _, command = self._commands.letters.pop(number)
        self._commands.put(command, command.position.source if command.position else "inbox")

    async def drop_dead(self, number: int) -> None:
        if self._commands.letters.pop(number, None) is None:
            raise letter_not_found(number)


def _sequence(delivery: Delivery) -> int:
    assert delivery.position is not None
    return delivery.position.sequence
