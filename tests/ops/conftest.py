"""One real server a worker; each test has a realm of its own on it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from rookery.bus.server.server import EmbeddedServer
from tests.ops.fixtures import Realm

_numbers = count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("server") / "store", admin=True) as running:
        yield running


@pytest.fixture
def realm(server: EmbeddedServer, tmp_path: Path) -> Realm:
    return Realm(server, f"realm{next(_numbers)}", tmp_path)
