"""Durable commands on JetStream: the inbox stream, published by anybody, pulled by the owners.

One stream holds the realm's commands and, sourced by the server, its fired timers. Each partition
is a line of its own (``rookery.bus.commands.partition_consumer``); dead letters are another stream
(``rookery.bus.commands.dead_letters``). This is where the port meets them, and the client's side:
publishing a command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rookery.bus.commands.dead_letters import DeadLetters
from rookery.bus.commands.headers import command_headers
from rookery.bus.commands.partition_consumer import PartitionConsumer
from rookery.bus.commands.publish import publish
from rookery.bus.commands.redelivery import SuspectGate
from rookery.bus.nats import Connection, Outgoing
from rookery.bus.ports import DeadLetter, Delivery, InboxPosition
from rookery.bus.subjects import Subjects

__all__ = ["JetStreamInbox"]


class JetStreamInbox:
    """Port ``Inbox``. To be made and used on the event loop of its connection."""

    def __init__(self, connection: Connection, subjects: Subjects) -> None:
        self._connection, self._subjects = connection, subjects
        self._dead_letters = DeadLetters(connection, subjects)
        self._suspect_gate = SuspectGate()
        self._consumers: dict[int, PartitionConsumer] = {}

    async def open(self, partition: int, deliver: Callable[[list[Delivery]], None]) -> None:
        if partition in self._consumers:
            raise RuntimeError(f"partition {partition} is open already")
        line = PartitionConsumer(
            self._connection,
            self._subjects,
            partition,
            deliver=deliver,
            bury=self.dead_letter,
            gate=self._suspect_gate,
        )
        self._consumers[partition] = line
        try:
            await line.open()
        except BaseException:
            self._consumers.pop(partition, None)
            raise

    def done(self, positions: Sequence[InboxPosition]) -> None:
        for position in positions:
            line = self._consumers.get(position.partition)
            if line is not None:
                line.done(position.sequence)

    async def close(self, partition: int) -> None:
        line = self._consumers.pop(partition, None)
        if line is not None:
            await line.close()

    def partitions_taken_over(self) -> frozenset[int]:
        return frozenset(p for p, line in self._consumers.items() if line.is_taken_over)

    async def stop(self) -> None:
        """Close what is open."""
        await asyncio.gather(*(self.close(partition) for partition in list(self._consumers)))

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
        headers = command_headers(message_id, content_type, mode, reply_to, traceparent)
        subject = self._subjects.command(verb, key)
        return await publish(self._connection, Outgoing(subject, body, headers=headers))

    async def dead_letter(self, delivery: Delivery, code: str, message: str) -> int:
        return await self._dead_letters.add(delivery, code, message)

    async def dead_letters(self) -> list[DeadLetter]:
        return await self._dead_letters.all()

    async def retry_dead_letter(self, number: int) -> None:
        await self._dead_letters.retry(number)

    async def drop_dead_letter(self, number: int) -> None:
        await self._dead_letters.drop(number)
