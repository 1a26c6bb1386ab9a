"""A realm with a node, a client and the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from rookery.bus.server.server import EmbeddedServer
from tests.nodes import NodeProcess, Said, rookery_here
from tests.stock_client import Stock, stock

__all__ = ["PAYLOAD_BYTES_MAX", "Serving"]

PAYLOAD_BYTES_MAX = 200_000
"""The realm of the node that most tests share."""


class Serving:
    """A realm, its server and its node."""

    def __init__(self, server: EmbeddedServer, node: NodeProcess, realm: str, folder: Path) -> None:
        self.server, self.node, self.realm, self.folder = server, node, realm, folder

    def visit(self, scenario: Callable[[Stock], Awaitable[None]]) -> None:
        """Run a scenario with a stock client that follows all sessions."""

        async def visit() -> None:
            async with stock(self.server.url, self.realm) as client:
                await client.follow()
                await scenario(client)

        asyncio.run(visit())

    def rookery(self, *arguments: str) -> Said:
        """Run a command of the command line."""
        where = ("--url", self.server.url, "--realm", self.realm, "--json")
        return rookery_here(self.folder, *arguments, *where)
