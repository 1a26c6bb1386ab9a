"""A cluster loses its leader under load. The long form: ``python -m tests.chaos.cluster``."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.bus.cluster import Cluster
from tests.chaos.cluster import REALM, break_server, cluster_load


def test_no_run_is_lost_and_no_call_repeated_if_the_leader_is_killed(tmp_path: Path):
    async def scenario() -> None:
        async with (
            Cluster(tmp_path / "cluster", REALM) as cluster,
            cluster_load(cluster, tmp_path) as load,
        ):
            report = await break_server(load, "killed", away_s=0.0)
            assert report.runs > 0
            assert await load.ends() > report.runs

    asyncio.run(scenario())
