"""One node for the tests of a worker that leave it alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mcp_server.mcp_fixtures import McpRealm


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[McpRealm]:
    realm = McpRealm(tmp_path_factory.mktemp("shop"))
    with realm.served():
        yield realm
