"""One server and one node for each test process; each test uses its own sessions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.execution.realm_fixture import PAYLOAD_BYTES_MAX, Serving
from tests.nodes import node_on

REALM = "shared"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("runs") / "store", admin=True) as running:
        yield running


@pytest.fixture(scope="session")
def serving(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("node")
    limits = {"ROOKERY_LIMITS_PAYLOAD_BYTES_MAX": str(PAYLOAD_BYTES_MAX)}
    with node_on(server, REALM, folder, **limits) as node:
        yield Serving(server, node, REALM, folder, Role.OPERATOR)  # They take steps, too.


@pytest.fixture(scope="session")
def driving(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A realm whose node executes programs."""
    folder, realm = tmp_path_factory.mktemp("driving"), "driving"
    flags = ("--driver", "sandbox", "--tools", "tests.execution.tools:registry")
    variables = {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "ROOKERY_APPROVALS_DISPATCHERS": ",",
        "ROOKERY_LIMITS_PAYLOAD_BYTES_MAX": str(PAYLOAD_BYTES_MAX),
    }
    with node_on(server, realm, folder, *flags, **variables) as node:
        yield Serving(server, node, realm, folder)
