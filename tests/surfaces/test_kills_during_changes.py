"""A node is killed at every step of adding and removing a surface; the next one goes on. The long
form, at every failpoint there is and with MCP servers, too: ``tests.chaos.surface_kills``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from rookery.actors.kernel.executors.failpoints import SURFACE_FAILPOINTS
from rookery.bus.server.server import EmbeddedServer
from tests.chaos.surface_kills import LOCAL, kill_at
from tests.surfaces.surface_realm import SurfaceRealm

_realms = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("kills") / "store", admin=True) as running:
        yield running


@pytest.mark.parametrize(
    ("kind", "failpoint"),
    [*(("worker", failpoint) for failpoint in SURFACE_FAILPOINTS), (LOCAL, "surfaces_taken_up")],
)
def test_a_node_may_die_at_any_step_of_a_change(
    server: EmbeddedServer, tmp_path: Path, kind: str, failpoint: str
):
    realm = SurfaceRealm(server, f"kill{next(_realms)}", tmp_path)
    assert asyncio.run(kill_at(realm, failpoint, kind)), "the node has died there"
