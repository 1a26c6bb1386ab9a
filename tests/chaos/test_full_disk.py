"""A full disk is back-pressure: a red probe, and everything accepted is worked off later."""

from __future__ import annotations

import asyncio
from pathlib import Path

import nats.js.errors
import pytest

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.streams import SUBJECTS_KEY
from rookery.bus.subjects import Subjects
from rookery.schemas.envelope import EntityId
from tests.chaos.digests import journaled
from tests.execution.session_client import Visit
from tests.nodes import NodeProcess, node_on
from tests.stock_client import Fields, Stock, data, stock, until

REALM = "full"
STORE_BYTES_MAX = 2 << 20
JOURNAL_FULL = 10077
PADDING = "x" * 8_000


def test_a_full_journal_holds_commands_back_until_there_is_room(
    server: EmbeddedServer, tmp_path: Path
):
    async def story() -> None:
        async with stock(server, REALM, Role.OPERATOR) as client:
            with node_on(server, REALM, tmp_path, "--metrics-port", "0") as node:
                await client.follow()
                visit = await opened(client)
                await limit_journal(client, await journal_bytes(client))
                accepted = await submit(client, 50)
                await colour(node, 503)
                assert node.probes("/livez")[0] == 200
                assert (await refused_by_journal(client)) == JOURNAL_FULL
                assert len(worked(visit)) < len(accepted)
                await limit_journal(client, -1)
                await until(lambda: len(worked(visit)) == len(accepted), "all is worked off")
                assert worked(visit) == accepted
                await colour(node, 200)

    asyncio.run(story())


def test_a_full_server_loses_nothing_it_took_and_goes_on_when_it_gets_room(tmp_path: Path):
    async def story() -> None:
        server = EmbeddedServer(tmp_path / "store", store_bytes_max=STORE_BYTES_MAX, admin=True)
        await asyncio.to_thread(server.start)
        try:
            with node_on(server, REALM, tmp_path, "--metrics-port", "0") as node:
                async with stock(server, REALM, Role.OPERATOR) as client:
                    await opened(client)
                    accepted = await submit(client, 10_000)
                    assert len(accepted) < 10_000
                    await colour(node, 503)
                    await asyncio.to_thread(server.stop)
                    server = EmbeddedServer(server.store, admin=True)
                    await asyncio.to_thread(server.start)
                    await colour(node, 200)
                    await until(lambda: client.nats.is_connected)
                    await all_worked_off(server, accepted)
        finally:
            await asyncio.to_thread(server.stop)

    asyncio.run(story())


async def opened(client: Stock) -> Visit:
    visit = Visit(client, "patient")
    await visit.handle("Initialize")
    await visit.handle("RegisterSession")
    return visit


async def submit(client: Stock, count: int) -> list[str]:
    """Up to so many commands, as far as the server takes them."""
    accepted: list[str] = []
    for number in range(count):
        work = {"runtime_id": PADDING, "work_id": f"w-{number}", "origin": "peer"}
        body, subject = (
            {"input": "ingest", "params": work},
            f"rookery.{REALM}.cmd.admission.patient",
        )
        try:
            await client.jetstream.publish(
                subject, data(body), headers={"Nats-Msg-Id": f"w-{number}"}
            )
        except nats.js.errors.ServiceUnavailableError:
            break
        accepted.append(f"w-{number}")
    return accepted


async def limit_journal(client: Stock, bytes_max: int) -> None:
    """As an operator would, with stock tools: the journal's limit in bytes is his to set."""
    streams = await client.admin()
    info = await streams.stream_info(f"ROOKERY_{REALM}_JOURNAL")
    await streams.update_stream(info.config.evolve(max_bytes=bytes_max))


async def journal_bytes(client: Stock) -> int:
    info = await (await client.admin()).stream_info(f"ROOKERY_{REALM}_JOURNAL")
    return int(info.state.bytes)


async def refused_by_journal(client: Stock) -> int:
    """The error a stock publisher meets there."""
    streams = await client.admin()
    info = await streams.stream_info(f"ROOKERY_{REALM}_JOURNAL")
    subjects = Subjects(REALM)
    subjects.set_node_token(info.config.metadata[SUBJECTS_KEY])
    subject = subjects.append_of_node(EntityId("node", "stranger"))
    with pytest.raises(nats.js.errors.APIError) as refused:
        await streams.publish(subject, b"[]")
    assert refused.value.err_code is not None
    return refused.value.err_code


async def colour(node: NodeProcess, status: int) -> None:
    async with asyncio.timeout(30):
        while (await asyncio.to_thread(node.probes))[0] != status:
            await asyncio.sleep(0.05)


def worked(visit: Visit) -> list[str]:
    return [fact["work_id"] for fact in visit.of_type("work_ingested")]


async def all_worked_off(server: EmbeddedServer, accepted: list[str]) -> None:
    """Everything the server took is journaled, once and in order."""
    found: list[Fields] = []
    while len(found) < len(accepted):
        journal = await journaled(server, REALM)
        found = [fact for fact in journal.facts("patient") if "work_id" in fact]
    assert [fact["work_id"] for fact in found] == accepted
