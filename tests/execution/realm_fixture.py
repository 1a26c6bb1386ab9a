"""A realm that is served, and ways in for a client and for an operator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from rookery.bus.server.server import EmbeddedServer
from tests.nodes import NodeProcess, Said, rookery_here
from tests.stock_client import Stock, stock

__all__ = ["PAYLOAD_BYTES_MAX", "Serving"]

PAYLOAD_BYTES_MAX = 200_000
"""Of the node that most tests share."""


class Serving:
    """A realm, its server and its node."""

    def __init__(self, server: EmbeddedServer, node: NodeProcess, realm: str, folder: Path) -> None:
        self.server, self.node, self.realm, self.folder = server, node, realm, folder

    def visit(self, story: Callable[[Stock], Awaitable[None]]) -> None:
        """Let a stock client that follows all sessions do something."""

        async def visit() -> None:
            async with stock(self.server.url, self.realm) as client:
                await client.follow()
                await story(client)

        asyncio.run(visit())

    def rookery(self, *arguments: str) -> Said:
        """A command of the command line."""
        where = ("--url", self.server.url, "--realm", self.realm, "--json")
        return rookery_here(self.folder, *arguments, *where)
