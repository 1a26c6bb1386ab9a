"""The port of connections to surfaces outside the node's own process.

A connection belongs to the node: all sessions that have the surface share it. The executor of the
family ``surface`` opens and closes it by the facts; calls of its tools are made by its host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from rookery.actors.tools.hosts import ToolHost
from rookery.schemas.machines.surface import McpServerState
from rookery.schemas.surfaces import SurfaceSource, SurfaceTool

__all__ = [
    "ConnectionReport",
    "ListedResource",
    "SurfaceConnection",
    "SurfaceConnections",
    "SurfaceContent",
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

    async def find_fault(self) -> str:
        """Why nothing serves the surface now, if its state does not say so; else empty."""

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
