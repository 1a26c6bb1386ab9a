"""The decider of the family ``surface``: binds its two machines to the session, and keeps the
realm's catalogue.

The machines record what is requested and what was done; the executor connects and closes. If this
node executes runs, only the executor completes jobs and removals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from immutables import Map
from msgspec import UNSET
from msgspec.structs import asdict, replace

from rookery.actors.admission.admission_machine import evolve_host
from rookery.actors.kernel import Effect
from rookery.actors.kernel.machines import (
    ATTACHED,
    IDLE,
    MachineBinding,
    Reservation,
    SessionHost,
    SessionMachineDecider,
    SessionMachineState,
)
from rookery.actors.surfaces.catalogue import (
    Catalogue,
    ReadCatalogue,
    RecordCatalogue,
    change_catalogue,
    evolve_catalogue,
)
from rookery.actors.surfaces.effects import (
    EFFECT_TYPES,
    CompleteSurface,
    ReportServer,
    SettleRemoval,
    TakeUp,
    pending_surface_effects,
    surface_effects,
)
from rookery.actors.surfaces.mcp_server_machine import MCP_SERVERS, McpServers, pending_server_ids
from rookery.actors.surfaces.session_rules import (
    TakenEntry,
    complete,
    evolve_taken,
    force_removal,
    report_server,
    settle,
    take_up,
)
from rookery.actors.surfaces.state import Surfaces, diagnostic_snapshot, surface_snapshot
from rookery.actors.surfaces.surface_machine import SURFACES
from rookery.schemas.codec import FactCodec
from rookery.schemas.commands import COMMANDS, HandleInput
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts import surface as facts
from rookery.schemas.machines.views import McpServersView, SurfacesView, SurfaceView
from rookery.schemas.surfaces import SurfaceDue

__all__ = ["CatalogueRecorded", "SessionSurfaces", "SurfacesDecider"]


class SessionSurfaces(SessionMachineState, frozen=True, kw_only=True):
    """The states of the two machines, or under its key the realm's catalogue."""

    surfaces: Surfaces = Surfaces()
    servers: McpServers = McpServers()
    catalogue: Catalogue = Catalogue()
    taken: Map[str, TakenEntry] = Map()
    """By surface, what the session has taken up of the catalogue."""
    catalogued: int = 0
    """The last change of the catalogue that it has taken up."""


class CatalogueRecorded(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``ReadCatalogue`` and ``RecordCatalogue``."""

    catalogue: Catalogue


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
    verbs: Mapping[str, type[msgspec.Struct]] = {
        verb: COMMANDS[verb] for verb in ("surfaces", "surface_due")
    }
    codec: FactCodec[facts.SurfaceFact] = FactCodec(facts.SURFACE_FACTS)
    bindings = (
        MachineBinding(SURFACES, "surfaces", _surfaces_view, _SURFACE_READS, ("surface_id",)),
        MachineBinding(MCP_SERVERS, "servers", _mcp_servers_view, ("pending_server_ids",)),
    )
    initial_state = SessionSurfaces()

    fenced_facts = frozenset({facts.ShutDown})

    def __init__(self, *, executes_runs: bool = False) -> None:
        super().__init__(executes_runs=executes_runs)
        self.effect_types = EFFECT_TYPES if executes_runs else frozenset()

    def check_key(self, key: str) -> None:
        if key != facts.REALM_KEY:
            super().check_key(key)

    def decide(
        self, state: SessionSurfaces, command: Command[Any], *, now_ms: int
    ) -> Sequence[Fact]:
        left: Sequence[Fact] = ()
        match command.body:
            case HandleInput():
                _check_is_session(command)
                left = super().decide(state, command, now_ms=now_ms)
            case RecordCatalogue() as change:
                left = change_catalogue(state.catalogue, change)
            case TakeUp() as taken:
                left = take_up(self, state, command.key, taken, now_ms=now_ms)
            case CompleteSurface() as ended:
                left = complete(self, state, command.key, ended)
            case ReportServer() as report:
                left = report_server(self, state, command.key, report)
            case SettleRemoval() as settled:
                left = settle(self, state, command.key, settled)
            case SurfaceDue(surface=surface, timeout_at_ms=timeout_at_ms):
                if not command.id.startswith("timer/"):
                    raise Refused("GUARD_REJECTED", "only a timer may force a removal")
                left = force_removal(self, state, command.key, surface, timeout_at_ms)
        return left

    def reservation(
        self, state: SessionSurfaces, command: Command[HandleInput]
    ) -> Reservation | None:
        """The executor alone completes and finalizes what it performs."""
        if not self._executes_runs:
            return None
        return super().reservation(state, command) or Reservation(
            f"the node performs the surfaces of {command.key}",
            "rookery surfaces add / remove / reload NAME",
        )

    def view(self, state: SessionSurfaces, on: str, params: Mapping[str, Any]) -> msgspec.Struct:
        """One surface for ``surface_snapshot``; else the view of the input's machine."""
        if on != _SNAPSHOT:
            return super().view(state, on, params)
        return SurfaceView(surface=surface_snapshot(state.surfaces, str(params.get("surface_id"))))

    def reply(
        self, state: SessionSurfaces, command: Command[Any], facts: Sequence[Fact]
    ) -> msgspec.Struct | CodedError:
        match command.body:
            case HandleInput():
                return super().reply(state, command, facts)
            case ReadCatalogue() | RecordCatalogue():
                return CatalogueRecorded(catalogue=state.catalogue)
        return _surfaces_view(state.surfaces, {})

    def evolve(self, state: SessionSurfaces, fact: Any) -> SessionSurfaces:
        if isinstance(fact, facts.CatalogueFact):
            return replace(state, catalogue=evolve_catalogue(state.catalogue, fact))
        after: SessionSurfaces = super().evolve(state, fact)
        if isinstance(fact, facts.SnapshotAligned) and fact.catalogued is not UNSET:
            return replace(after, catalogued=fact.catalogued)
        return replace(after, taken=evolve_taken(after.taken, fact))

    def effects(self, state: SessionSurfaces, fact: Any) -> Sequence[Effect]:
        return surface_effects(state.surfaces, fact)

    def pending_effects(self, state: SessionSurfaces, key: str) -> Sequence[Effect]:
        return pending_surface_effects(state.surfaces, key) if self._executes_runs else ()

    def evolve_host(self, host: SessionHost, fact: Any) -> SessionHost:
        return evolve_host(host, fact)

    def with_host(self, state: SessionSurfaces, host: SessionHost) -> SessionSurfaces:
        """A node that executes runs serves its sessions between two runs, too."""
        placed: SessionSurfaces = super().with_host(state, host)
        if not self._executes_runs or host.phase is not IDLE:
            return placed
        serving = replace(host, phase=ATTACHED)
        return replace(placed, surfaces=replace(placed.surfaces, host=serving))


def _check_is_session(command: Command[Any]) -> None:
    """Refuse surfaces under the key of the realm's catalogue."""
    if command.key == facts.REALM_KEY:
        raise Refused(
            "INVALID_SESSION_ID", f"{facts.REALM_KEY} has the realm's catalogue and no surfaces"
        )
