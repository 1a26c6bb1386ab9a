"""The connections of a node to MCP servers, on one loop of their own. Used on the bus's loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from rookery.actors.credentials import CredentialSource
from rookery.actors.surfaces.connections import ConnectionReport
from rookery.bus.event_loop import LoopThread
from rookery.bus.ports import Blobs, ValueSeal
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.surfaces import SurfaceKind, SurfaceSource, SurfaceTool, check_surface

if TYPE_CHECKING:
    from rookery.ops.mcp_client.server_connection import ServerConnection

__all__ = ["McpConnections", "require_mcp"]

_LOGGERS: Final = ("client", "httpcore2", "httpx2", "mcp")
"""Of the SDK."""
_THREAD: Final = "rookery-mcp"
KINDS: Final = (SurfaceKind.MCP_STDIO, SurfaceKind.MCP_HTTP)


def require_mcp() -> None:
    """Refuse what needs the SDK where it is not installed."""
    if find_spec("mcp") is None:
        raise Refused(
            "EXTRA_MISSING",
            "connections to MCP servers need the SDK, which is not installed",
            hint="pip install 'rookery[mcp]', on each node",
        )


class McpConnections:
    """Implements the port ``SurfaceConnections``; one per node."""

    def __init__(
        self,
        blobs: Blobs,
        *,
        seal: ValueSeal,
        credentials: CredentialSource,
        environ: Mapping[str, str],
    ) -> None:
        self._blobs, self._seal, self._credentials = blobs, seal, credentials
        self._environ = environ
        self._thread: LoopThread | None = None
        self._open: set[ServerConnection] = set()

    async def open(
        self,
        surface: str,
        source: SurfaceSource,
        report: Callable[[ConnectionReport], None],
        known: Sequence[SurfaceTool] = (),
    ) -> ServerConnection:
        del known  # The server says which tools it has now.
        check_surface(surface)
        if source.kind not in KINDS:
            raise Refused("INVALID_ARGUMENT", f"{surface} is no MCP server but {source.kind}")
        require_mcp()
        # The SDK takes half a second to import, which a node without such a source does not spend.
        server_connection = await asyncio.to_thread(_load)
        if self._thread is None:
            self._thread = LoopThread(_THREAD)
        connection = server_connection(
            surface,
            source,
            thread=self._thread,
            blobs=self._blobs,
            seal=self._seal,
            credentials=self._credentials,
            environ=self._environ,
            report=report,
        )
        self._open.add(connection)
        if error := await connection.open():
            await self._close(connection)
            raise Failed("SURFACE_UNAVAILABLE", error)
        return connection

    async def close(self) -> None:
        """End all connections and their servers."""
        await asyncio.gather(*map(self._close, tuple(self._open)))
        if self._thread is not None:
            await asyncio.to_thread(self._thread.close)

    async def _close(self, connection: ServerConnection) -> None:
        await connection.close()
        self._open.discard(connection)


class _OtherThreads(logging.Handler):
    """Passes on what the SDK logs elsewhere. On the thread of the connections it logs what servers
    send, without a limit and with tracebacks; each connection has a log of its own."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        if record.threadName != _THREAD and self._logger.parent is not None:
            self._logger.parent.callHandlers(record)


def _silence_connections() -> None:
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if not any(isinstance(one, _OtherThreads) for one in logger.handlers):
            logger.addHandler(_OtherThreads(logger))
            logger.propagate = False


def _load() -> type[ServerConnection]:
    _silence_connections()
    from rookery.ops.mcp_client.server_connection import (  # noqa: PLC0415 - of an extra.
        ServerConnection,
    )

    return ServerConnection
