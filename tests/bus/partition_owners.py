"""Owners of partitions as the suites of inbox, timers and door need them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from rookery.bus.ports import PARTITIONS, Bus, Delivery
from rookery.bus.subjects import partition_of
from tests.bus.deadlines import wait_until

ALL = range(PARTITIONS)


class Worker:
    """Takes what is delivered; does it at once unless it is to leave it."""

    def __init__(
        self, bus: Bus, *, does: bool = True, batches: list[list[Delivery]] | None = None
    ) -> None:
        self.bus = bus
        self.does = does
        self.batches = [] if batches is None else batches
        """What came, in the order it came; workers may share it."""

    def take(self, batch: list[Delivery]) -> None:
        self.batches.append(batch)
        if self.does:
            self.do(batch)

    def do(self, deliveries: Iterable[Delivery]) -> None:
        self.bus.inbox.done([d.position for d in deliveries if d.position is not None])

    async def open(self, partitions: Iterable[int] = ALL) -> Worker:
        await asyncio.gather(*(self.bus.inbox.open(p, self.take) for p in partitions))
        return self

    async def close(self, partitions: Iterable[int] = ALL) -> None:
        await asyncio.gather(*(self.bus.inbox.close(p) for p in partitions))

    @property
    def taken(self) -> list[Delivery]:
        return [delivery for batch in self.batches for delivery in batch]

    def bodies(self, key: str | None = None) -> list[bytes]:
        return [d.body for d in self.taken if key is None or d.key == key]

    async def has(self, count: int) -> list[Delivery]:
        """All deliveries, as soon as there are so many."""
        await wait_until(lambda: len(self.taken) >= count)
        return self.taken

    async def has_batches(self, count: int) -> list[list[Delivery]]:
        await wait_until(lambda: len(self.batches) >= count)
        return self.batches


async def opened(bus: Bus, key: str, *, does: bool = True) -> Worker:
    """A worker for the partition of one key."""
    return await Worker(bus, does=does).open([partition_of(key)])


async def submitted(bus: Bus, key: str, *bodies: bytes) -> None:
    """Commands in the order given, their bodies being their ids too."""
    for body in bodies:
        await bus.inbox.submit("run", key, body, message_id=body.decode())


def neighbours(count: int) -> list[str]:
    """So many keys of one partition."""
    names = (f"s{number}" for number in range(10_000))
    found = [name for name in names if partition_of(name) == 3]
    return found[:count]
