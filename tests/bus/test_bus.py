"""A whole bus: what it creates, checks and leaves unchanged when it joins a realm."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from nats.js.errors import NoStreamResponseError

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.memory import MemoryBus, MemoryServer
from rookery.bus.ports import (
    PARTITIONS,
    Appended,
    AppendOutcome,
    AppendRequest,
    Bus,
    Delivery,
    EntitySnapshot,
)
from rookery.bus.roles import Role
from rookery.bus.server_access import ServerAccess
from rookery.bus.subjects import partition_of
from rookery.schemas.digest import chain
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed, Refused
from tests.bus.realms import JetStreamRealm, Realm, soon

ENTITY = EntityId("session", "s1")


def test_everything_of_a_realm_is_shared_by_its_buses(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as writer, realm.bus() as reader:
            settled = await _appended(writer, b"[]")
            assert (await reader.journal.read(ENTITY))[0].body == b"[]"
            assert settled == await reader.journal.end()
            digest = await writer.blobs.put(b"blob")
            assert await reader.blobs.get(digest) == b"blob"
            claim = await writer.claims.acquire("p", "a", 30)
            assert await reader.claims.list() == [claim]
            await writer.snapshots.save(ENTITY, 1, EntitySnapshot(settled, b"state"))
            assert await reader.snapshots.load(ENTITY, 1) == EntitySnapshot(settled, b"state")

            delivered: list[Delivery] = []
            await reader.inbox.open(reader.partition("s1"), delivered.extend)
            await writer.inbox.submit("run", "s1", b"{}", message_id="m-1")

            async def arrived() -> list[Delivery]:
                return delivered

            assert [one.id for one in await soon(arrived)] == ["m-1"]

    asyncio.run(scenario())


def test_a_bus_is_connected_between_start_and_stop(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        for bus in (MemoryBus(MemoryServer(lambda: 0)), JetStreamBus(jetstream.server.url)):
            assert not bus.connected
            await bus.start()
            assert bus.connected
            assert bus.partition("s1") == partition_of("s1")
            await bus.stop()
            assert not bus.connected

    asyncio.run(scenario())


def test_realms_on_one_server_do_not_see_each_other(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        server = MemoryServer(lambda: 0)
        pairs: list[tuple[Bus, Bus]] = [
            (MemoryBus(server, realm="a"), MemoryBus(server, realm="b")),
            (
                JetStreamBus(jetstream.server.url_for(Role.NODE, realm="a"), realm="a"),
                JetStreamBus(jetstream.server.url_for(Role.NODE, realm="b"), realm="b"),
            ),
        ]
        for one, other in pairs:
            await one.start()
            await other.start()
            await _appended(one, b"[]")
            digest = await one.blobs.put(b"blob")
            await one.claims.acquire("p", "a", 30)
            assert (one.realm, other.realm) == ("a", "b")
            assert await other.journal.end() == 0
            assert await other.claims.list() == []
            with pytest.raises(Failed, match="BLOB_NOT_FOUND"):
                await other.blobs.get(digest)
            await one.stop()
            await other.stop()

    asyncio.run(scenario())


def test_a_realm_has_a_name_that_fits_a_subject() -> None:
    for build in (
        lambda: MemoryBus(MemoryServer(lambda: 0), realm="a.b"),
        lambda: JetStreamBus("nats://127.0.0.1:1", realm="a.b"),
    ):
        with pytest.raises(Refused, match="INVALID_ARGUMENT"):
            build()


def test_the_server_may_go_away_and_come_back(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            first = await _appended(bus, b"[1]")
            jetstream.server.kill()

            async def lost() -> bool:
                return not bus.connected

            async def connected() -> bool:
                return bus.connected

            await soon(lost)
            appending = asyncio.create_task(_appended(bus, b"[2]", first))
            await asyncio.sleep(0)
            jetstream.server.start()
            assert await appending == first + 1
            await soon(connected)  # Appends have their own connection, which may be first.

    asyncio.run(scenario())


# --- streams --------------------------------------------------------------------------------------


def test_nodes_that_start_at_once_agree_on_the_streams(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        buses = [JetStreamBus(jetstream.server.url) for _ in range(4)]
        await asyncio.gather(*(bus.start() for bus in buses))
        await asyncio.gather(*(bus.stop() for bus in buses))
        async with jetstream.stock() as client:
            streams = await client.jetstream().streams_info()
            assert sorted(stream.config.name for stream in streams) == [
                "KV_ROOKERY_default_BLOBS",
                "KV_ROOKERY_default_CLAIMS",
                "KV_ROOKERY_default_IMAGES",
                "KV_ROOKERY_default_SNAPSHOTS",
                "KV_ROOKERY_default_UPLOADS",
                "KV_ROOKERY_default_VAULT",
                "KV_ROOKERY_default_VIEWS",
                "ROOKERY_default_DEAD",
                "ROOKERY_default_INBOX",
                "ROOKERY_default_JOURNAL",
                "ROOKERY_default_PEERS",
                "ROOKERY_default_TIMERS",
            ]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("stream", "changed", "named"),
    [
        ("ROOKERY_default_JOURNAL", {"discard": "old"}, "discard"),
        ("KV_ROOKERY_default_CLAIMS", {"subject_delete_marker_ttl": 5_000_000_000}, "marker"),
        ("KV_ROOKERY_default_BLOBS", {"max_age": 3_600_000_000_000}, "max_age"),
        ("KV_ROOKERY_default_BLOBS", {"max_msgs_per_subject": 5}, "max_msgs_per_subject"),
        ("KV_ROOKERY_default_SNAPSHOTS", {"allow_direct": False}, "allow_direct"),
    ],
)
def test_a_stream_that_is_not_ours_in_form_is_refused_and_left_as_it_is(
    jetstream: JetStreamRealm, stream: str, changed: dict[str, Any], named: str
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            config = (await bus.connection.api(f"STREAM.INFO.{stream}"))["config"]
            await bus.connection.api(f"STREAM.UPDATE.{stream}", config | changed)
            before = (await bus.connection.api(f"STREAM.INFO.{stream}"))["config"]
            late = JetStreamBus(jetstream.server.url)
            with pytest.raises(Failed, match=f"STREAM_MISMATCH.*{stream}.*{named}"):
                await late.start()
            assert not late.connected
            assert (await bus.connection.api(f"STREAM.INFO.{stream}"))["config"] == before

    asyncio.run(scenario())


def test_what_an_operator_may_change_is_left_changed(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        stream = "KV_ROOKERY_default_BLOBS"
        async with jetstream.bus() as bus:
            config = (await bus.connection.api(f"STREAM.INFO.{stream}"))["config"]
            changed = config | {"max_bytes": 1 << 30, "description": "kept"}
            await bus.connection.api(f"STREAM.UPDATE.{stream}", changed)
        async with jetstream.bus() as bus:
            config = (await bus.connection.api(f"STREAM.INFO.{stream}"))["config"]
            assert (config["max_bytes"], config["description"]) == (1 << 30, "kept")

    asyncio.run(scenario())


def test_a_full_bucket_is_an_error(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        stream = "KV_ROOKERY_default_BLOBS"
        async with jetstream.bus() as bus:
            config = (await bus.connection.api(f"STREAM.INFO.{stream}"))["config"]
            await bus.connection.api(f"STREAM.UPDATE.{stream}", config | {"max_bytes": 100_000})
            with pytest.raises(Failed, match="JOURNAL_FULL"):
                await bus.blobs.put(bytes(200_000))
            assert await bus.blobs.get(await bus.blobs.put(b"small")) == b"small"

    asyncio.run(scenario())


def test_stock_tools_can_read_a_bucket_and_not_write_it(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus, jetstream.stock() as client:
            digest = await bus.blobs.put(b"blob")
            claim = await bus.claims.acquire("node-1", "a", 30, b"value")
            assert claim is not None
            blobs = await client.jetstream().key_value("ROOKERY_default_BLOBS")
            claims = await client.jetstream().key_value("ROOKERY_default_CLAIMS")
            assert (await blobs.get(f"{digest}.0")).value == b"blob"
            entry = await claims.get("node-1")
            assert (entry.value, entry.revision) == (b"value", claim.token)
            with pytest.raises(NoStreamResponseError):
                await claims.delete("node-1")
            assert [held.name for held in await bus.claims.list()] == ["node-1"]

    asyncio.run(scenario())


# --- start ----------------------------------------------------------------------------------------


def test_a_server_that_does_not_let_us_in_is_a_coded_refusal(
    jetstream: JetStreamRealm, tmp_path: Path
) -> None:
    async def scenario() -> None:
        address = jetstream.server.address
        for bus in (JetStreamBus(address), JetStreamBus(address, ServerAccess(token="wrong"))):
            with pytest.raises(Refused, match="UNAUTHORIZED"):
                await bus.start()
            assert not bus.connected
        bus = JetStreamBus(jetstream.server.url, sync="default")
        await bus.start()
        await bus.stop()
        jetstream.server.stop()
        with pytest.raises(Failed, match="SERVER_UNREACHABLE"):
            await JetStreamBus(jetstream.server.url).start()

    asyncio.run(scenario())


async def _appended(bus: Bus, body: bytes, expected: int = 0) -> int:
    done: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()
    append = AppendRequest(ENTITY, expected, f"id-{expected}", body, chain("", body))
    if not expected:
        await bus.journal.begin_terms(frozenset(range(PARTITIONS)))
    bus.journal.append([append], lambda outcomes: done.set_result(outcomes[0]))
    outcome = await done
    assert isinstance(outcome, Appended)
    return outcome.sequence
