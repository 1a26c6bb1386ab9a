"""A realm whose next node is newer: it has a guest build of its own, and perhaps other tools."""

from __future__ import annotations

from itertools import count
from pathlib import Path

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.digest import digest_bytes
from tests.builds import cache_with, own_build, with_section
from tests.chaos.test_parked_runs import Realm
from tests.nodes import NodeProcess
from tests.stock_client import Stock

__all__ = ["NewerNodes"]


_realms = count(1)


class NewerNodes(Realm):
    """The old build they have from the realm, if at all."""

    def __init__(self, server: EmbeddedServer, folder: Path) -> None:
        super().__init__(server, folder)
        self.realm = f"upgraded{next(_realms)}"

    async def move_on(self) -> str:
        """From now on the realm's own build is another one, which newer nodes bring with them; its
        digest. As if the guest's sources had changed."""
        component = with_section(own_build(), "newer")
        cache_with(self.folder / "newer", component)
        bus = JetStreamBus(self.server.url_for(Role.NODE, realm=self.realm), realm=self.realm)
        await bus.start()
        for claim in await bus.claims.list("guest.python."):
            await bus.claims.release(claim)
        await bus.stop()
        return digest_bytes(component)

    def newer(self, tools: str = "careful:TOOLS") -> NodeProcess:
        return self.node(tools, XDG_CACHE_HOME=str(self.folder / "newer"))

    async def lose(self, client: Stock, build: str) -> None:
        """The realm's blob store has it no more."""
        bucket = f"ROOKERY_{self.realm}_BLOBS"
        streams = await client.admin()
        await streams.purge_stream(f"KV_{bucket}", subject=f"$KV.{bucket}.{build}.*")
