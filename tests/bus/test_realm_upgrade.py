"""A realm of an older version is upgraded in place, without loss."""

from __future__ import annotations

import asyncio

import pytest

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.journal.audit import ChainAudit
from rookery.bus.nats.connection import Connection
from rookery.bus.ports import Filter
from rookery.bus.realm_upgrade import apply_upgrade, plan_upgrade
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.streams import FORMAT, ensure_streams, streams_of
from rookery.bus.subjects import Subjects
from rookery.schemas.errors import Failed
from tests.bus.formats import append_as_format_1, make_format_1
from tests.bus.journals import Writer, gather, session

SUBJECTS = Subjects("default")


def test_an_old_realm_is_refused_until_it_is_upgraded_and_then_goes_on(
    server: EmbeddedServer,
) -> None:
    async def scenario() -> None:
        old = Connection(server.url)
        await old.open()
        await make_format_1(old, SUBJECTS)
        writer = Writer()
        written = [writer.next(session(f"s{n}")) for n in range(5)]
        assert b'"seq":5' in await append_as_format_1(old, SUBJECTS, written)
        for sequence, append in enumerate(written, 1):
            writer.ends[append.entity] = sequence, append.chain

        with pytest.raises(Failed, match=r"REALM_UPGRADE_REQUIRED.*rookery realm upgrade"):
            await JetStreamBus(server.url).start()
        plan = await plan_upgrade(old, SUBJECTS)
        assert (plan.format, plan.to, plan.messages, plan.is_needed) == (1, FORMAT, 5, True)
        await apply_upgrade(old, SUBJECTS)
        plan = await plan_upgrade(old, SUBJECTS)
        assert (plan.format, plan.messages, plan.is_needed) == (FORMAT, 5, False)

        with pytest.raises(Failed, match="SERVER_UNREACHABLE"):  # No stream listens there now.
            await append_as_format_1(old, SUBJECTS, [writer.next(session("s0"))])
        bus = JetStreamBus(server.url)
        await bus.start()
        assert await writer.write(bus.journal, session("s0"), session("new")) == [6, 7]
        audit = ChainAudit()
        for stored in await gather(bus.journal.scan(Filter())):
            audit.add(stored)
        assert audit.audit.verified == 7
        await bus.stop()
        await old.close()

    asyncio.run(scenario())


def test_a_realm_of_a_later_version_is_refused_in_one_sentence(server: EmbeddedServer) -> None:
    async def scenario() -> None:
        connection = Connection(server.url)
        await connection.open()
        await ensure_streams(connection, streams_of(SUBJECTS))
        stream = SUBJECTS.journal_stream
        config = (await connection.api(f"STREAM.INFO.{stream}"))["config"]
        later = config["metadata"] | {"rookery-format": str(FORMAT + 1)}
        await connection.api(f"STREAM.UPDATE.{stream}", config | {"metadata": later})
        with pytest.raises(Failed, match=f"REALM_TOO_NEW.*has format {FORMAT + 1}"):
            await ensure_streams(connection, streams_of(SUBJECTS))
        await connection.close()

    asyncio.run(scenario())
