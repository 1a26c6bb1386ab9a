"""One server and one node for each test process: with a mount, a web server, a static resource and
resources of an application. Each test uses its own sessions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from rookery.bus.client.client import Client
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.nodes import (
    ROOKERY,
    NodeProcess,
    Said,
    access_to,
    clean_environment,
    node_on,
    rookery_here,
)
from tests.tools.builtin.web_server import Web

REALM = "resources"
CONFIG = """
[[resources.static]]
name = "prices"
file = "prices.json"
privacy = "public"

[[resources.static]]
name = "salaries"
file = "prices.json"
privacy = "sensitive"
"""


class Realm(NamedTuple):
    """A realm whose node has resources."""

    server: EmbeddedServer
    node: NodeProcess
    web: Web
    folder: Path

    @property
    def data(self) -> Path:
        """The mounted folder."""
        return self.folder / "data"

    @property
    def site(self) -> str:
        return f"http://127.0.0.1:{self.web.port}"

    def url_for(self, role: Role) -> str:
        return self.server.url_for(role, realm=REALM)

    def visit(
        self, scenario: Callable[[Client], Awaitable[None]], role: Role = Role.CLIENT
    ) -> None:
        async def connected() -> None:
            async with Client(self.url_for(role), realm=REALM) as client:
                await scenario(client)

        asyncio.run(connected())

    async def started(self, *arguments: str) -> asyncio.subprocess.Process:
        """A command that does not end by itself."""
        command = (ROOKERY, *arguments, *access_to(self.server, REALM))
        return await asyncio.create_subprocess_exec(
            *command,
            cwd=self.folder,
            stdout=asyncio.subprocess.PIPE,
            env=clean_environment(self.folder),
        )

    def rookery(self, *arguments: str) -> Said:
        return rookery_here(self.folder, *arguments, *access_to(self.server, REALM))


@pytest.fixture(scope="session")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realm]:
    folder, web = tmp_path_factory.mktemp("resources"), Web()
    (folder / "data").mkdir()
    (folder / "prices.json").write_text('{"tea": 3}')
    (folder / "rookery.toml").write_text(CONFIG)
    flags = (
        *("--driver", "sandbox", "--tools", "tests.resources.application:registry"),
        *("--mount", f"data={folder / 'data'}"),
        *("--allow-http", f"http://127.0.0.1:{web.port}/open 127.0.0.0/8"),
    )
    issued = folder / "store/credentials"  # By its own one, the node knows who sends what.
    variables = {
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "ROOKERY_SERVER_CREDENTIALS_FILE": str(issued / f"{REALM}.node.json"),
    }
    try:
        with (
            EmbeddedServer(folder / "store", admin=True) as server,
            node_on(server, REALM, folder, *flags, **variables) as node,
        ):
            yield Realm(server, node, web, folder)
    finally:
        web.stop()
