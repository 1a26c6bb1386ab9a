"""What waits in the streams, as a scrape sees it."""

from __future__ import annotations

import asyncio

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.ports import Delivery
from rookery.bus.roles import Role
from rookery.bus.subjects import Subjects
from rookery.ops.metrics import GAUGES
from rookery.ops.probes import backlog_gauges
from tests.ops.fixtures import Realm


def test_commands_count_until_they_are_done_and_dead_letters_for_ever(realm: Realm):
    async def scenario() -> None:
        bus = JetStreamBus(realm.server.url_for(Role.NODE, realm=realm.name), realm=realm.name)
        await bus.start()
        arrived: asyncio.Queue[list[Delivery]] = asyncio.Queue()
        partition = bus.partition("s1")
        await bus.inbox.open(partition, arrived.put_nowait)
        await bus.inbox.submit("run", "s1", b"{}", message_id="a")
        (delivery,) = await arrived.get()
        await bus.inbox.submit("run", "s1", b"{}", message_id="b")
        await counted(bus, 2)
        assert (await readings(bus))["rookery_dead_letter_total"] == 0
        number = await bus.inbox.dead_letter(delivery, "COMMAND_QUARANTINED", "it failed")
        await bus.inbox.drop_dead_letter(number)
        assert delivery.position is not None
        bus.inbox.done([delivery.position])
        await arrived.get()
        await counted(bus, 1)
        assert (await readings(bus))["rookery_dead_letter_total"] == 1
        await bus.stop()
        assert await readings(bus) == {}

    async def counted(bus: JetStreamBus, commands: int) -> None:
        """The server counts them in its own time."""
        async with asyncio.timeout(30):
            while (await readings(bus))["rookery_inbox_lag_commands"] != commands:
                await asyncio.sleep(0.01)

    async def readings(bus: JetStreamBus) -> dict[str, float]:
        found = await backlog_gauges(bus.connection, Subjects(realm.name))
        assert {reading.name for reading in found} <= set(GAUGES)
        return {reading.name: reading.value for reading in found}

    asyncio.run(scenario())
