"""mcp_server_lifecycle: the connection state of each MCP server of a session.

The last input wins: every input is accepted in every state, an unknown server is added, and a
repeated input repeats its effect. The executor of the effects connects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from immutables import Map
from msgspec.structs import replace

from rookery.actors.kernel.machines import (
    LIVE,
    Machine,
    MachineInput,
    SessionHost,
    Transition,
    TransitionEffect,
    session_registered,
)
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
    """All servers ever named; the map never shrinks."""

    host: SessionHost = SessionHost()
    mcp_server_states: Map[str, McpServerState] = Map()


class McpServerStateChanged(TransitionEffect, frozen=True, kw_only=True):
    """The server has this state."""

    server_id: str
    new_state: McpServerState


class McpServerReloadRequested(TransitionEffect, frozen=True, kw_only=True):
    """Disconnect the server and connect it again."""

    server_id: str


def is_registered(servers: McpServers, _: Any) -> bool:
    return servers.host.phase in LIVE and session_registered(servers.host)


def set_state(state: McpServerState) -> Callable[[McpServers, Any], McpServers]:
    return lambda servers, fact: replace(
        servers, mcp_server_states=servers.mcp_server_states.set(fact.server_id, state)
    )


def emit_state(state: McpServerState) -> Callable[[McpServers, Any], TransitionEffect]:
    return lambda _, fact: McpServerStateChanged(server_id=fact.server_id, new_state=state)


def request_reload(_: McpServers, fact: facts.ServerReloadRequested) -> TransitionEffect:
    return McpServerReloadRequested(server_id=fact.server_id)


# fmt: off
_ROWS = (
    Transition("ConnectPending", "apply_connect_pending", is_registered,
        set_state(PENDING_CONNECT), (emit_state(PENDING_CONNECT),)),
    Transition("Connected", "apply_connected", is_registered,
        set_state(CONNECTED), (emit_state(CONNECTED),)),
    Transition("Failed", "apply_failed", is_registered,
        set_state(FAILED), (emit_state(FAILED),)),
    Transition("Disconnected", "apply_disconnected", is_registered,
        set_state(DISCONNECTED), (emit_state(DISCONNECTED),)),
    Transition("Reload", "apply_reload", is_registered,
        set_state(PENDING_CONNECT), (request_reload, emit_state(PENDING_CONNECT))),
)
# fmt: on

MCP_SERVERS = Machine(
    "mcp_server_lifecycle",
    handle="McpServerLifecycleHandle",
    phases=(ABSENT, *McpServerState),
    initial=McpServers(),
    inputs={
        "apply_connect_pending": MachineInput(facts.ServerConnecting, ("server_id",)),
        "apply_connected": MachineInput(facts.ServerConnected, ("server_id",)),
        "apply_failed": MachineInput(facts.ServerFailed, ("server_id", "error")),
        "apply_disconnected": MachineInput(facts.ServerDisconnected, ("server_id",)),
        "apply_reload": MachineInput(facts.ServerReloadRequested, ("server_id",)),
    },
    rows=_ROWS,
    phase=lambda servers, fact: servers.mcp_server_states.get(fact.server_id, ABSENT),
    host_phase=lambda servers: servers.host.phase,
)


def pending_server_ids(servers: McpServers) -> tuple[str, ...]:
    """The ids of connecting servers, sorted."""
    states = servers.mcp_server_states
    return tuple(sorted(server for server in states if states[server] is PENDING_CONNECT))
