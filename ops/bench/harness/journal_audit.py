"""The audit of a bench's journal after every cell, because fast and wrong is not fast.

Each command is committed exactly once, each entity's facts are numbered without a gap, and each
chain of digests is valid. The first violation ends the bench.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rookery.bus.event_loop import LoopThread
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.journal_audit import ChainAudit
from rookery.bus.ports import Filter, StoredMessage
from rookery.ops.bench.harness.bench_nodes import FAMILY, BenchDecider
from rookery.ops.bench.harness.load import command_id
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed
from rookery.schemas.ids import parse_fact_id

__all__ = ["JournalAudit"]


class JournalAudit:
    """Audits the journal of one harness."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._read_to = 0
        self._chains = ChainAudit()
        self._counts: Counter[EntityId] = Counter()

    def check(self, cell: str, commands: int) -> None:
        """Check that exactly the ``commands`` of this cell were committed since the last check."""
        thread = LoopThread("rookery-bench-audit")
        try:
            found = thread.run(self._read())
        finally:
            thread.close()
        expected = {command_id(cell, number) for number in range(commands)}
        if found.keys() != expected or found.total() != commands:
            lost, foreign = expected - found.keys(), found.keys() - expected
            twice = [command for command, times in found.items() if times > 1]
            raise Failed(
                "NODE_FAILED",
                f"of {commands} answered commands of {cell} {len(lost)} are not in the journal, "
                f"{len(twice)} are there more than once, {len(foreign)} belong to no cell",
            )

    async def _read(self) -> Counter[str]:
        """How many of the new messages each command caused."""
        found: Counter[str] = Counter()
        async with _open_bus(self._url) as bus:
            async for page in bus.journal.scan(Filter(family=FAMILY), self._read_to):
                for stored in page:
                    found.update(self._causes(stored))
        return found

    def _causes(self, stored: StoredMessage) -> list[str]:
        self._chains.add(stored)
        self._read_to = stored.sequence
        facts = BenchDecider.codec.decode(stored.body)
        for fact in facts:
            self._counts[stored.entity] += 1
            if parse_fact_id(fact.id)[2] != self._counts[stored.entity]:
                raise Failed(
                    "FACT_INVALID",
                    f"{fact.id} is fact {self._counts[stored.entity]} of {stored.entity}",
                )
        return [cause for fact in facts for cause in fact.cause]


@asynccontextmanager
async def _open_bus(url: str) -> AsyncIterator[JetStreamBus]:
    bus = JetStreamBus(url)
    await bus.start()
    try:
        yield bus
    finally:
        await bus.stop()
