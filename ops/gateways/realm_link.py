"""The connection of a gateway to its realm, which outlives restarts of nodes and servers."""

from __future__ import annotations

import asyncio
from typing import Final

from rookery.bus.client import Client
from rookery.bus.roles import Role
from rookery.ops.config import Config
from rookery.ops.server import ConfiguredServer, RealmServer
from rookery.schemas.errors import Failed

__all__ = ["RealmLink"]

PATIENCE_S: Final = 10.0
"""How long a request waits for a node or a server that is away: less than other clients do."""


class RealmLink:
    """A client of the realm, opened when it is first needed. Used on one event loop.

    A client reconnects by itself while its server keeps its address. An embedded server may come
    back on another port: then the next request opens another client.
    """

    def __init__(self, config: Config, role: Role) -> None:
        self._config, self._role = config, role
        self._client: Client | None = None
        self._server: RealmServer | None = None
        self._opening = asyncio.Lock()

    @property
    def realm(self) -> str:
        return self._config.realm

    def find_server(self) -> RealmServer:
        """The server as it is configured, or runs, now; ``Failed`` SERVER_UNREACHABLE."""
        server = ConfiguredServer(self._config).find(self._role)
        if server is None:
            raise ConfiguredServer(self._config).missing_error()
        return server

    async def client(self) -> Client:
        """A client that is connected, or about to be; a coded error if no server answers."""
        async with self._opening:
            if self._client is None or not self._client.connected:
                await self._reopen()
            assert self._client is not None
            return self._client

    async def _reopen(self) -> None:
        try:
            server = await asyncio.to_thread(self.find_server)
        except Failed:
            if self._client is None:
                raise
            return  # It may come back where it was.
        if self._client is not None and server == self._server:
            return
        client = server.client(self._config.realm, PATIENCE_S)
        await client.open()
        await self.close()
        self._client, self._server = client, server

    async def close(self) -> None:
        """Disconnect; runs continue."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()
