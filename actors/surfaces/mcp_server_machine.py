"""mcp_server_lifecycle: where the connection to each MCP server of a session stands.

The last word wins: every input is taken in every state, servers nobody heard of are new ones, and
saying a thing twice tells it twice. Connecting is for whoever reads the effects; what the tools of
a server may be asked is ``machine``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from immutables import Map
from msgspec.structs import replace

from rookery.actors.kernel.machines.machine import Input, Machine, Row, RowEffect
from rookery.actors.kernel.machines.session_host import LIVE, Host, session_registered
from rookery.schemas.facts import surface as facts
from rookery.schemas.machines.surface import McpServerState

__all__ = [
    "ABSENT",
    "MCP_SERVERS",
    "McpServerReloadRequested",
    "McpServerStateChanged",
    "McpServers",
    "pending_server_ids",
]

ABSENT = "absent"
PENDING_CONNECT, CONNECTED, FAILED, DISCONNECTED = McpServerState


class McpServers(msgspec.Struct, frozen=True, kw_only=True):
    """The servers anybody ever spoke of; there is no way to forget one."""

    host: Host = Host()
    mcp_server_states: Map[str, McpServerState] = Map()


class McpServerStateChanged(RowEffect, frozen=True, kw_only=True):
    """The server stands here now, or still."""

    server_id: str
    new_state: McpServerState


class McpServerReloadRequested(RowEffect, frozen=True, kw_only=True):
    """The server is to be disconnected and connected again."""

    server_id: str


def registered(servers: McpServers, _: Any) -> bool:
    return servers.host.phase in LIVE and session_registered(servers.host)


def becomes(state: McpServerState) -> Callable[[McpServers, Any], McpServers]:
    return lambda servers, asked: replace(
        servers, mcp_server_states=servers.mcp_server_states.set(asked.server_id, state)
    )


def tell(state: McpServerState) -> Callable[[McpServers, Any], RowEffect]:
    return lambda _, asked: McpServerStateChanged(server_id=asked.server_id, new_state=state)


def request_reload(_: McpServers, asked: facts.ServerReloadRequested) -> RowEffect:
    return McpServerReloadRequested(server_id=asked.server_id)


# fmt: off
_ROWS = (
    Row("ConnectPending", "apply_connect_pending", registered,
        becomes(PENDING_CONNECT), (tell(PENDING_CONNECT),)),
    Row("Connected", "apply_connected", registered,
        becomes(CONNECTED), (tell(CONNECTED),)),
    Row("Failed", "apply_failed", registered,
        becomes(FAILED), (tell(FAILED),)),
    Row("Disconnected", "apply_disconnected", registered,
        becomes(DISCONNECTED), (tell(DISCONNECTED),)),
    Row("Reload", "apply_reload", registered,
        becomes(PENDING_CONNECT), (request_reload, tell(PENDING_CONNECT))),
)
# fmt: on

MCP_SERVERS = Machine(
    "mcp_server_lifecycle",
    handle="McpServerLifecycleHandle",
    phases=(ABSENT, *McpServerState),
    initial=McpServers(),
    inputs={
        "apply_connect_pending": Input(facts.ServerConnecting, ("server_id",)),
        "apply_connected": Input(facts.ServerConnected, ("server_id",)),
        "apply_failed": Input(facts.ServerFailed, ("server_id", "error")),
        "apply_disconnected": Input(facts.ServerDisconnected, ("server_id",)),
        "apply_reload": Input(facts.ServerReloadRequested, ("server_id",)),
    },
    rows=_ROWS,
    phase=lambda servers, asked: servers.mcp_server_states.get(asked.server_id, ABSENT),
    host_phase=lambda servers: servers.host.phase,
)


def pending_server_ids(servers: McpServers) -> tuple[str, ...]:
    """The servers that are still connecting, sorted."""
    states = servers.mcp_server_states
    return tuple(sorted(server for server in states if states[server] is PENDING_CONNECT))
