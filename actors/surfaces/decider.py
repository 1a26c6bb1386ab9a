"""The decider of the family ``surface``: binds its two machines to the session.

The machines record what is requested and what was done; executors connect, call and close.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import asdict

from rookery.actors.admission import evolve_host
from rookery.actors.kernel.machines import (
    MachineBinding,
    SessionHost,
    SessionMachineDecider,
    SessionMachineState,
)
from rookery.actors.surfaces.mcp_server_machine import MCP_SERVERS, McpServers, pending_server_ids
from rookery.actors.surfaces.state import Surfaces, diagnostic_snapshot, surface_snapshot
from rookery.actors.surfaces.surface_machine import SURFACES
from rookery.schemas.codec import FactCodec
from rookery.schemas.commands import COMMANDS
from rookery.schemas.facts import surface as facts
from rookery.schemas.machines.views import McpServersView, SurfacesView, SurfaceView

__all__ = ["SessionSurfaces", "SurfacesDecider"]


class SessionSurfaces(SessionMachineState, frozen=True, kw_only=True):
    """The states of the two machines."""

    surfaces: Surfaces = Surfaces()
    servers: McpServers = McpServers()


def _surfaces_view(state: Surfaces, _: Mapping[str, Any]) -> SurfacesView:
    return SurfacesView(**asdict(diagnostic_snapshot(state)))


def _mcp_servers_view(servers: McpServers, _: Mapping[str, Any]) -> McpServersView:
    return McpServersView(
        states=dict(servers.mcp_server_states), pending_server_ids=pending_server_ids(servers)
    )


_SNAPSHOT = "surface_snapshot"
_SURFACE_READS = (
    _SNAPSHOT,
    "diagnostic_snapshot",
    "visible_surfaces",
    "removing_surfaces",
    "pending_surfaces",
    "has_pending_or_staged",
    "snapshot_epoch",
    "snapshot_aligned_epoch",
)


class SurfacesDecider(SessionMachineDecider):
    """Decides the commands of the family ``surface``."""

    family = "surface"
    verbs: Mapping[str, type[msgspec.Struct]] = {"surfaces": COMMANDS["surfaces"]}
    codec: FactCodec[facts.SurfaceFact] = FactCodec(facts.SURFACE_FACTS)
    bindings = (
        MachineBinding(SURFACES, "surfaces", _surfaces_view, _SURFACE_READS, ("surface_id",)),
        MachineBinding(MCP_SERVERS, "servers", _mcp_servers_view, ("pending_server_ids",)),
    )
    initial_state = SessionSurfaces()

    fenced_facts = frozenset({facts.ShutDown})

    def view(self, state: SessionSurfaces, on: str, params: Mapping[str, Any]) -> msgspec.Struct:
        """One surface for ``surface_snapshot``; else the view of the input's machine."""
        if on != _SNAPSHOT:
            return super().view(state, on, params)
        return SurfaceView(surface=surface_snapshot(state.surfaces, str(params.get("surface_id"))))

    def evolve_host(self, host: SessionHost, fact: Any) -> SessionHost:
        return evolve_host(host, fact)
