"""Connections to servers for tests: a node's own, with a bus in memory for what it stores."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import UNSET

from rookery.actors.credentials import NO_CREDENTIALS, CredentialSource
from rookery.actors.protection.sensitive_values import NO_SEAL
from rookery.actors.surfaces.connections import ConnectionReport
from rookery.actors.tools import ToolCallContext
from rookery.bus.memory import MemoryBus, MemoryServer
from rookery.bus.ports import Blobs, ValueSeal
from rookery.ops.mcp_client import McpConnections
from rookery.ops.mcp_client.server_connection import ServerConnection
from rookery.schemas.calls import ApprovalMode, CallOutcome, Capability
from rookery.schemas.surfaces import SurfaceKind, SurfacePolicy, SurfaceSource, ToolPolicy

__all__ = [
    "FREE",
    "HOSTILE",
    "OpenServer",
    "code_of",
    "hostile",
    "is_running",
    "opened",
    "play",
    "until",
]

HOSTILE = Path(__file__).with_name("hostile_server.py")
FREE = SurfacePolicy(default=ToolPolicy(approval=ApprovalMode.NONE))
"""Its tools need no approval, so that calls are not preceded by a list of the tools."""
PATIENCE_S = 60.0


def hostile(mode: str = "usual", **more: Any) -> SurfaceSource:
    """The source of the hostile server."""
    command = (sys.executable, "-I", "-S", str(HOSTILE), mode)
    return SurfaceSource(kind=SurfaceKind.MCP_STDIO, command=command, **{"policy": FREE, **more})


class OpenServer(NamedTuple):
    """An open connection, and what it reported."""

    connection: ServerConnection
    blobs: Blobs
    reports: list[ConnectionReport]
    connections: McpConnections

    @property
    def capabilities(self) -> tuple[Capability, ...]:
        """Of the tools as the server lists them now."""
        return tuple(tool.capability for tool in self.connection.tools)

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any] | None = None,
        *,
        timeout_ms: int = 20_000,
        may_act: Callable[[], bool] = lambda: True,
        **context: Any,
    ) -> CallOutcome:
        """A call of a tool by the server's name of it."""
        name = f"{self.connection.host.surface}_{tool}"
        ctx = ToolCallContext(
            name=name, args=[], kwargs=arguments or {}, **{"call_id": tool, **context}
        )
        return await self.connection.host.call(ctx, timeout_ms, may_act)


@asynccontextmanager
async def opened(
    source: SurfaceSource,
    *,
    surface: str = "shop",
    environ: Mapping[str, str] = os.environ,
    seal: ValueSeal = NO_SEAL,
    credentials: CredentialSource = NO_CREDENTIALS,
) -> AsyncIterator[OpenServer]:
    blobs = MemoryBus(MemoryServer(lambda: 0)).blobs
    connections = McpConnections(blobs, seal=seal, credentials=credentials, environ=environ)
    reports: list[ConnectionReport] = []
    try:
        connection = await connections.open(surface, source, reports.append)
        yield OpenServer(connection, blobs, reports, connections)
    finally:
        await connections.close()


def play(work: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await work

    asyncio.run(bounded())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.02)


def code_of(outcome: CallOutcome) -> str:
    assert outcome.error is not UNSET, outcome
    return outcome.error.code


def is_running(pid: int) -> bool:
    """A zombie has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(") ")[2][0] != "Z"
