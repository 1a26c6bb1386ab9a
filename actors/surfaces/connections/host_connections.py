"""Connections that hold nothing open: to the workers of the realm, and to the node's own functions.

A call goes to whichever worker the server chooses, and workers may come and go. So a surface that
the catalogue knows needs no worker to be connected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from rookery.actors.surfaces.connections.connection_ports import (
    ConnectionReport,
    ListedResource,
    SurfaceContent,
)
from rookery.actors.tools.catalogue import ToolCatalogue
from rookery.actors.tools.functions import RemoteToolHost
from rookery.actors.tools.hosts import ToolHost
from rookery.bus.ports import ToolWorkers
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.surfaces import SurfaceSource, SurfaceTool
from rookery.schemas.worker_protocol import ServedTool

__all__ = ["LocalConnections", "WorkerConnections"]

PATIENCE_S: Final = 1.0
"""How long a surface may have no worker while its tools are listed."""


class HostConnection:
    """Implements the port ``SurfaceConnection`` by a host that needs no connection."""

    def __init__(self, surface: str, host: ToolHost, tools: tuple[SurfaceTool, ...]) -> None:
        self._surface, self.host, self.tools = surface, host, tools
        self.instructions = ""
        self.problems: Mapping[str, str] = {}
        self.log: tuple[str, ...] = ()

    async def find_fault(self) -> str:
        """None: it is in this process."""
        return ""

    async def list_resources(self) -> tuple[ListedResource, ...]:
        """None: it serves tools."""
        return ()

    async def read_resource(self, uri: str) -> tuple[SurfaceContent, ...]:
        text = f"{self._surface} has no resource {uri[:80]!r}: it serves tools"
        raise Refused("RESOURCE_NOT_FOUND", text)

    async def close(self) -> None:
        """Nothing is open."""


class _WorkerConnection(HostConnection):
    """To the workers of a surface, which come and go without a word."""

    def __init__(self, surface: str, host: RemoteToolHost) -> None:
        super().__init__(surface, host, host.surface_tools)
        self._remote = host

    async def find_fault(self) -> str:
        return "" if await self._remote.is_served() else f"no worker serves {self._surface}"


class WorkerConnections:
    """Implements the port ``SurfaceConnections``."""

    def __init__(self, workers: ToolWorkers) -> None:
        self._workers = workers

    async def open(
        self,
        surface: str,
        source: SurfaceSource,
        report: Callable[[ConnectionReport], None],
        known: Sequence[SurfaceTool] = (),
    ) -> HostConnection:
        del source, report
        if known:
            served = {
                tool.served_as: ServedTool(capability=tool.capability, awaited=tool.awaited)
                for tool in known
            }
            return _WorkerConnection(surface, RemoteToolHost(self._workers, surface, served))
        host = await RemoteToolHost.discover(self._workers, surface, patience_s=PATIENCE_S)
        if host is None:
            raise Failed(
                "SURFACE_UNAVAILABLE",
                f"no worker serves {surface}",
                hint=f"rookery tools serve MODULE:OBJECT --surface {surface}",
            )
        return _WorkerConnection(surface, host)


class LocalConnections:
    """Implements the port ``SurfaceConnections`` for the functions in the node's own process."""

    def __init__(self, host: ToolHost, tools: ToolCatalogue) -> None:
        self._host, self._tools = host, tools

    async def open(
        self,
        surface: str,
        source: SurfaceSource,
        report: Callable[[ConnectionReport], None],
        known: Sequence[SurfaceTool] = (),
    ) -> HostConnection:
        del source, report, known
        return HostConnection(surface, self._host, self._tools.functions)
