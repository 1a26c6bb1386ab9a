"""Streams get their copies in a cluster, new ones at once and existing ones by the upgrade."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.nats import Connection
from rookery.bus.replicas import StreamReplicas, change_replicas, default_replicas, plan_replicas
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.bus.subjects import Subjects
from rookery.schemas.errors import Failed
from tests.bus.cluster import Cluster

SUBJECTS = Subjects("default")


async def served(cluster: Cluster, replicas: int) -> list[int]:
    """The copies of every stream after a bus with this setting has started."""
    bus = JetStreamBus(cluster.url, cluster.access_of(Role.NODE), replicas=replicas)
    await bus.start()
    await bus.stop()
    found = [await cluster.connection.api(f"STREAM.INFO.{name}") for name in SUBJECTS.streams]
    return [info["config"]["num_replicas"] for info in found]


def test_streams_with_one_copy_get_three_one_at_a_time(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Cluster(tmp_path / "cluster") as cluster:
            connection = cluster.connection
            assert default_replicas(connection, 0) == 3
            assert set(await served(cluster, 1)) == {1}
            assert await plan_replicas(connection, SUBJECTS, 1) == []

            plan = await plan_replicas(connection, SUBJECTS, 0)
            assert [one.stream for one in plan] == list(SUBJECTS.streams)
            assert {(one.replicas, one.wanted) for one in plan} == {(1, 3)}
            seen: list[StreamReplicas] = []
            await change_replicas(connection, plan[:4], seen.append)  # Then it is interrupted.
            rest = await plan_replicas(connection, SUBJECTS, 0)
            assert [one.stream for one in rest] == list(SUBJECTS.streams[4:])
            await change_replicas(connection, rest, seen.append)
            assert await plan_replicas(connection, SUBJECTS, 0) == []
            assert {one.stream for one in seen if one.is_complete} == set(SUBJECTS.streams)
            assert set(await served(cluster, 0)) == {3}

    asyncio.run(scenario())


def test_a_server_alone_has_one_copy_and_refuses_more(server: EmbeddedServer) -> None:
    async def scenario() -> None:
        connection = Connection(server.url)
        await connection.open()
        assert default_replicas(connection, 0) == 1
        await connection.close()
        with pytest.raises(Failed, match=r"STREAM_MISMATCH.*cannot be created"):
            await JetStreamBus(server.url, replicas=3).start()

    asyncio.run(scenario())
