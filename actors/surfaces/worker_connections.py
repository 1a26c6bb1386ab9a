"""Connections to worker surfaces: processes that serve tools on the bus.

Nothing is held open: a call goes to whichever worker the server chooses, and workers may come and
go. So a surface that the catalogue knows needs no worker to be connected.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rookery.actors.surfaces.connections import ConnectionReport, ListedResource, SurfaceContent
from rookery.actors.tools import RemoteToolHost
from rookery.bus.ports import ToolWorkers
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.surfaces import SurfaceSource, SurfaceTool
from rookery.schemas.worker_protocol import ServedTool

__all__ = ["WorkerConnections"]

PATIENCE_S = 1.0
"""How long a surface may have no worker while its tools are listed."""


class WorkerConnection:
    """Implements the port ``SurfaceConnection``."""

    def __init__(self, host: RemoteToolHost) -> None:
        self.host = host
        self.tools: tuple[SurfaceTool, ...] = host.surface_tools
        self.instructions = ""
        self.problems: Mapping[str, str] = {}
        self.log: tuple[str, ...] = ()

    async def list_resources(self) -> tuple[ListedResource, ...]:
        """None: workers serve tools."""
        return ()

    async def read_resource(self, uri: str) -> tuple[SurfaceContent, ...]:
        text = f"{self.host.surface} has no resource {uri[:80]!r}: workers serve tools"
        raise Refused("RESOURCE_NOT_FOUND", text)

    async def close(self) -> None:
        """Nothing is open."""


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
    ) -> WorkerConnection:
        del source, report
        if known:
            served = {
                tool.served_as: ServedTool(capability=tool.capability, awaited=tool.awaited)
                for tool in known
            }
            return WorkerConnection(RemoteToolHost(self._workers, surface, served))
        host = await RemoteToolHost.discover(self._workers, surface, patience_s=PATIENCE_S)
        if host is None:
            raise Failed(
                "SURFACE_UNAVAILABLE",
                f"no worker serves {surface}",
                hint=f"rookery tools serve MODULE:OBJECT --surface {surface}",
            )
        return WorkerConnection(host)
