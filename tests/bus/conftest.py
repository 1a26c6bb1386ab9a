"""Realms for the suites of the ports: ``realm`` runs a test on both buses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.bus.server.server import EmbeddedServer
from tests.bus.realms import JetStreamRealm, MemoryRealm, Realm


@pytest.fixture
def jetstream(tmp_path: Path) -> Iterator[JetStreamRealm]:
    realm = JetStreamRealm(tmp_path / "store")
    with realm.server:
        yield realm


@pytest.fixture(params=["memory", "jetstream"])
def realm(request: pytest.FixtureRequest) -> Realm:
    if request.param == "memory":
        return MemoryRealm()
    jetstream: JetStreamRealm = request.getfixturevalue("jetstream")
    return jetstream


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedServer]:
    """A started bus, stopped after the test."""
    with EmbeddedServer(tmp_path / "store", admin=True) as server:
        yield server


@pytest.fixture
def nats_url(server: EmbeddedServer) -> str:
    """URL of the server, for a user without limits."""
    return server.admin_url
