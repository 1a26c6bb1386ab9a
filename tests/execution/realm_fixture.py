"""A realm with a node, a client and the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.nodes import NodeProcess, Said, access_to, rookery_here
from tests.stock_client import Stock, stock

__all__ = ["PAYLOAD_BYTES_MAX", "Serving"]

PAYLOAD_BYTES_MAX = 200_000
"""The realm of the node that most tests share."""


class Serving:
    """A realm, its server and its node."""

    def __init__(
        self,
        server: EmbeddedServer,
        node: NodeProcess,
        realm: str,
        folder: Path,
        role: Role = Role.CLIENT,
    ) -> None:
        """``role``: of its stock clients."""
        self.server, self.node, self.realm, self.folder = server, node, realm, folder
        self.role = role

    def url_for(self, role: Role) -> str:
        """The URL with a credential of the realm."""
        return self.server.url_for(role, realm=self.realm)

    @property
    def url(self) -> str:
        """The URL for clients."""
        return self.url_for(Role.CLIENT)

    def visit(
        self,
        scenario: Callable[[Stock], Awaitable[None]],
        role: Role | Literal["admin"] | None = None,
    ) -> None:
        """Run a scenario with a stock client that follows all sessions."""

        async def visit() -> None:
            async with stock(self.server, self.realm, role or self.role) as client:
                await client.follow()
                await scenario(client)

        asyncio.run(visit())

    def rookery(self, *arguments: str) -> Said:
        """Run a command of the command line."""
        where = (*access_to(self.server, self.realm), "--json")
        return rookery_here(self.folder, *arguments, *where)
