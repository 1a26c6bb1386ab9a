"""The inbox on JetStream: durable commands, published by clients and pulled by partition owners.

One stream holds the realm's commands and, sourced by the server, its fired timers. The owner of a
partition pulls it (``partition_consumer``); dead letters have their own stream (``dead_letters``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rookery.bus.commands.dead_letters import DeadLetters
from rookery.bus.commands.decoder import CommandDecoder
from rookery.bus.commands.headers import command_headers
from rookery.bus.commands.partition_consumer import PartitionConsumer
from rookery.bus.commands.publish import publish
from rookery.bus.commands.redelivery import SuspectGate
from rookery.bus.nats import Connection, Outgoing
from rookery.bus.ports import DeadLetter, Delivery, InboxPosition
from rookery.bus.subjects import Subjects

__all__ = ["JetStreamInbox"]


class JetStreamInbox:
    """Port ``Inbox``; created and used on the event loop of its connection."""

    def __init__(self, connection: Connection, subjects: Subjects, decoder: CommandDecoder) -> None:
        self._connection, self._subjects, self._decoder = connection, subjects, decoder
        self._dead_letters = DeadLetters(connection, subjects, decoder)
        self._suspect_gate = SuspectGate()
        self._consumers: dict[int, PartitionConsumer] = {}

    async def open(self, partition: int, deliver: Callable[[list[Delivery]], None]) -> None:
        if partition in self._consumers:
            raise RuntimeError(f"partition {partition} is already open")
        consumer = PartitionConsumer(
            self._connection,
            self._subjects,
            partition,
            deliver=deliver,
            dead_letter=self.dead_letter,
            gate=self._suspect_gate,
            decoder=self._decoder,
        )
        self._consumers[partition] = consumer
        try:
            await consumer.open()
        except BaseException:
            self._consumers.pop(partition, None)
            raise

    def done(self, positions: Sequence[InboxPosition]) -> None:
        for position in positions:
            consumer = self._consumers.get(position.partition)
            if consumer is not None:
                consumer.done(position.sequence)

    async def close(self, partition: int) -> None:
        consumer = self._consumers.pop(partition, None)
        if consumer is not None:
            await consumer.close()

    def partitions_taken_over(self) -> frozenset[int]:
        return frozenset(p for p, one in self._consumers.items() if one.is_taken_over)

    async def stop(self) -> None:
        """Close all open partitions."""
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
        identity: str = "",
    ) -> int:
        headers = command_headers(
            message_id,
            content_type=content_type,
            mode=mode,
            reply_to=reply_to,
            traceparent=traceparent,
            identity=identity,
        )
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
