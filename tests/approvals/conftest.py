"""One server a worker; every test has a realm of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rookery.bus.server.server import EmbeddedServer
from tests.approvals.forged_history import recorded

__all__ = ["recorded", "server"]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("approvals") / "store", admin=True) as running:
        yield running
