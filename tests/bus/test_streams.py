"""Streams are created once and then checked: a stream that could lose data is refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rookery.bus.nats.connection import Connection
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.streams import ensure_journal, ensure_streams, new_node_token, streams_of
from rookery.bus.subjects import Subjects, partition_of
from rookery.schemas.errors import Failed

SUBJECTS = Subjects("default")
SUBJECTS.set_node_token(new_node_token())
SPECS = streams_of(SUBJECTS)
JOURNAL = SPECS[0]


async def opened(server: EmbeddedServer) -> Connection:
    connection = Connection(server.url)
    await connection.open()
    return connection


async def config_of(connection: Connection, stream: str) -> dict[str, Any]:
    config: dict[str, Any] = (await connection.api(f"STREAM.INFO.{stream}"))["config"]
    return config


def test_two_nodes_that_start_together_make_each_stream_once(server: EmbeddedServer) -> None:
    async def scenario() -> None:
        nodes, admin = [await opened(server) for _ in range(4)], Connection(server.admin_url)
        await admin.open()
        await asyncio.gather(*(ensure_streams(node, SPECS) for node in nodes))
        await ensure_streams(nodes[0], SPECS)
        names = (await admin.api("STREAM.NAMES"))["streams"]
        assert sorted(names) == sorted(spec.name for spec in SPECS)
        for connection in (*nodes, admin):
            await connection.close()

    asyncio.run(scenario())


def test_two_nodes_that_start_together_have_one_token(server: EmbeddedServer) -> None:
    async def scenario() -> None:
        nodes = [await opened(server) for _ in range(4)]
        each = [Subjects("default") for _ in nodes]
        joining = zip(nodes, each, strict=True)
        await asyncio.gather(*(ensure_journal(node, subjects) for node, subjects in joining))
        assert len({subjects.node_token for subjects in each}) == 1
        for node in nodes:
            await node.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_age", 1_000_000_000),
        ("discard", "old"),
        ("max_msgs_per_subject", 10),
        ("retention", "interest"),
        ("storage", "memory"),
        ("allow_atomic", False),
        ("deny_delete", False),
        ("persist_mode", "async"),
        ("subjects", ["rookery.default.w.1.>"]),
    ],
)
def test_a_journal_that_would_lose_data_is_refused_by_the_name_of_its_setting(
    server: EmbeddedServer, name: str, value: object
) -> None:
    async def scenario() -> None:
        connection = await opened(server)
        config = {"name": JOURNAL.name, **JOURNAL.demands, **JOURNAL.proposes, name: value}
        if name == "persist_mode":
            config["allow_atomic"] = False  # The server refuses both together.
        sound = {setting: value for setting, value in config.items() if value is not None}
        await connection.api(f"STREAM.CREATE.{JOURNAL.name}", sound)
        with pytest.raises(Failed, match=f"STREAM_MISMATCH: stream {JOURNAL.name}: {name} is "):
            await ensure_streams(connection, SPECS)
        await connection.close()

    asyncio.run(scenario())


def test_limits_are_the_operators_and_stay(server: EmbeddedServer) -> None:
    async def scenario() -> None:
        connection = await opened(server)
        await ensure_streams(connection, SPECS)
        config = await config_of(connection, JOURNAL.name)
        limits = {"max_bytes": 1 << 30, "duplicate_window": 5_000_000_000}
        await connection.api(f"STREAM.UPDATE.{JOURNAL.name}", config | limits)
        await ensure_streams(connection, SPECS)
        found = await config_of(connection, JOURNAL.name)
        assert {name: found[name] for name in limits} == limits
        await connection.close()

    asyncio.run(scenario())


def test_a_stream_whose_subjects_are_taken_is_a_mismatch(server: EmbeddedServer) -> None:
    async def scenario() -> None:
        connection = Connection(server.admin_url)
        await connection.open()
        other = {"name": "OTHER", "subjects": ["rookery.default.w.>"]}
        await connection.api("STREAM.CREATE.OTHER", other)
        with pytest.raises(
            Failed, match=f"STREAM_MISMATCH: stream {JOURNAL.name} cannot be created"
        ):
            await ensure_streams(connection, SPECS)
        await connection.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("key", ["s1", "github.com", "ünï✓", "a*b"])
def test_the_server_and_we_agree_on_the_partition_of_a_key(
    server: EmbeddedServer, key: str
) -> None:
    async def scenario() -> None:
        connection, subjects = await opened(server), SUBJECTS
        await ensure_streams(connection, SPECS)
        await connection.client.jetstream().publish(subjects.command("run", key), b"{}")
        stored = await connection.api(f"STREAM.MSG.GET.{subjects.inbox_stream}", {"seq": 1})
        wanted = ["rookery", "default", "cmd", str(partition_of(key))]
        assert stored["message"]["subject"].split(".")[:4] == wanted
        await connection.close()

    asyncio.run(scenario())
