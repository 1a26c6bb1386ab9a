"""A realm of three nodes gets three copies, and then loses its leader under load: all in one
cluster of ``ops/deploy/cluster``, as the start of three servers is what costs. The long form:
``python -m tests.chaos.cluster``."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.replicas import StreamReplicas, change_replicas, default_replicas, plan_replicas
from rookery.bus.roles import Role
from rookery.bus.subjects import Subjects
from tests.bus.cluster import Cluster
from tests.chaos.cluster import REALM, break_server, cluster_load

SUBJECTS = Subjects(REALM)


async def started(cluster: Cluster, replicas: int) -> set[int]:
    """The numbers of copies of the streams after a bus with this setting has started."""
    access = cluster.access_of(Role.NODE)
    bus = JetStreamBus(cluster.url, access, realm=REALM, replicas=replicas)
    await bus.start()
    await bus.stop()
    found = [await cluster.connection.api(f"STREAM.INFO.{name}") for name in SUBJECTS.streams]
    return {info["config"]["num_replicas"] for info in found}


async def streams_with_one_copy_get_three_one_at_a_time(cluster: Cluster) -> None:
    """Only some of them: each takes a second. The others are made anew, with three copies."""
    connection, (one, two, three, *others) = cluster.connection, SUBJECTS.streams
    assert default_replicas(connection, 0) == 3
    assert await started(cluster, 1) == {1}
    assert await plan_replicas(connection, SUBJECTS, 1) == []
    assert [plan.stream for plan in await plan_replicas(connection, SUBJECTS, 0)] == [
        *SUBJECTS.streams
    ]
    for name in others:
        await connection.api(f"STREAM.DELETE.{name}")
    assert await started(cluster, 0) == {1, 3}
    await cluster.whole(others)

    plan = await plan_replicas(connection, SUBJECTS, 0)
    assert [(p.stream, p.replicas, p.wanted) for p in plan] == [
        (name, 1, 3) for name in (one, two, three)
    ]
    seen: list[StreamReplicas] = []
    await change_replicas(connection, plan[:1], seen.append)  # Then it is interrupted.
    rest = await plan_replicas(connection, SUBJECTS, 0)
    assert [p.stream for p in rest] == [two, three]
    await change_replicas(connection, rest, seen.append)
    assert await plan_replicas(connection, SUBJECTS, 0) == []
    assert {p.stream for p in seen if p.is_complete} == {one, two, three}
    assert await started(cluster, 0) == {3}


def test_no_run_is_lost_and_no_call_repeated_if_the_leader_of_upgraded_streams_is_killed(
    tmp_path: Path,
):
    async def scenario() -> None:
        async with Cluster(tmp_path / "cluster", REALM) as cluster:
            await streams_with_one_copy_get_three_one_at_a_time(cluster)
            async with cluster_load(cluster, tmp_path, nodes=3) as load:
                report = await break_server(load, "killed", away_s=0.0)
                assert report.runs > 0
                assert await load.ends() > report.runs

    asyncio.run(scenario())
