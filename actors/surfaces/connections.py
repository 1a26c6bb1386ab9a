"""The port of connections to surfaces outside the node's own process.

A connection belongs to the node: all sessions that have the surface share it. The executor of the
family ``surface`` opens and closes it by the facts; calls of its tools are made by its host.
``WorkerConnections`` opens those to the workers of the realm, ``LocalConnections`` that to the
node's own functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from rookery.actors.tools import RemoteToolHost, ToolCatalogue, ToolHost
from rookery.bus.ports import ToolWorkers
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.machines.surface import McpServerState
from rookery.schemas.surfaces import SurfaceSource, SurfaceTool
from rookery.schemas.worker_protocol import ServedTool

__all__ = [
    "ConnectionReport",
    "ListedResource",
    "LocalConnections",
    "SurfaceConnection",
    "SurfaceConnections",
    "SurfaceContent",
    "WorkerConnections",
]


class ConnectionReport(NamedTuple):
    """What a connection says of itself when its state or its set of tools changes."""

    surface: str
    source_digest: str
    state: McpServerState
    error: str = ""
    """Why it failed: a code and a text, without a credential."""


class ListedResource(NamedTuple):
    """A resource as its server lists it."""

    uri: str
    name: str
    mime: str
    size_bytes: int | None
    description: str


class SurfaceContent(NamedTuple):
    """The bytes of a resource, or of a part of it."""

    uri: str
    mime: str
    data: bytes


class SurfaceConnection(Protocol):
    """An open connection to one source."""

    @property
    def host(self) -> ToolHost:
        """Calls its tools. It stays the same while the connection is lost and made again."""

    @property
    def tools(self) -> tuple[SurfaceTool, ...]:
        """The tools as the server lists them now, by the names that programs use."""

    @property
    def instructions(self) -> str:
        """What the server says of its use; a claim of the server."""

    @property
    def problems(self) -> Mapping[str, str]:
        """By the server's name of a tool: why it is not offered."""

    @property
    def log(self) -> tuple[str, ...]:
        """The last lines that the server wrote beside its messages, and what became of the
        connection."""

    async def list_resources(self) -> tuple[ListedResource, ...]:
        """What the server offers to read, as it lists it now."""

    async def read_resource(self, uri: str) -> tuple[SurfaceContent, ...]:
        """Read a resource by the server's own URI."""

    async def close(self) -> None:
        """End the calls in flight as unknown or failed, then the connection and its process."""


class SurfaceConnections(Protocol):
    """Opens connections. Used on the bus's loop."""

    async def open(
        self,
        surface: str,
        source: SurfaceSource,
        report: Callable[[ConnectionReport], None],
        known: Sequence[SurfaceTool] = (),
    ) -> SurfaceConnection:
        """Connect and list the tools once; a lost connection is made again until ``close``. Raises
        ``Failed`` with ``SURFACE_UNAVAILABLE``, or ``Refused`` for an invalid source. ``known``:
        the tools that the catalogue has, if it has the surface."""


# --- workers and functions ------------------------------------------------------------------------

# Connections to worker surfaces, processes that serve tools on the bus, and to functions.
#
# Nothing is held open: a call goes to whichever worker the server chooses, and workers may come and
# go. So a surface that the catalogue knows needs no worker to be connected.


PATIENCE_S = 1.0
"""How long a surface may have no worker while its tools are listed."""


class HostConnection:
    """Implements the port ``SurfaceConnection`` by a host that needs no connection."""

    def __init__(self, surface: str, host: ToolHost, tools: tuple[SurfaceTool, ...]) -> None:
        self._surface, self.host, self.tools = surface, host, tools
        self.instructions = ""
        self.problems: Mapping[str, str] = {}
        self.log: tuple[str, ...] = ()

    async def list_resources(self) -> tuple[ListedResource, ...]:
        """None: it serves tools."""
        return ()

    async def read_resource(self, uri: str) -> tuple[SurfaceContent, ...]:
        text = f"{self._surface} has no resource {uri[:80]!r}: it serves tools"
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
    ) -> HostConnection:
        del source, report
        if known:
            served = {
                tool.served_as: ServedTool(capability=tool.capability, awaited=tool.awaited)
                for tool in known
            }
            remote = RemoteToolHost(self._workers, surface, served)
            return HostConnection(surface, remote, remote.surface_tools)
        host = await RemoteToolHost.discover(self._workers, surface, patience_s=PATIENCE_S)
        if host is None:
            raise Failed(
                "SURFACE_UNAVAILABLE",
                f"no worker serves {surface}",
                hint=f"rookery tools serve MODULE:OBJECT --surface {surface}",
            )
        return HostConnection(surface, host, host.surface_tools)


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
