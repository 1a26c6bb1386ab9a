"""What a session does with the catalogue: it stages its difference, applies it at a boundary, and
ends jobs and removals. Pure: each rule puts inputs to the machine, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec
from immutables import Map
from msgspec import UNSET
from msgspec.structs import force_setattr

from rookery.actors.kernel import FactBuilder
from rookery.actors.kernel.machines import TransitionRejected
from rookery.actors.surfaces.effects import CompleteSurface, ReportServer, SettleRemoval, TakeUp
from rookery.schemas.calls import OfferedSurface
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import surface as facts
from rookery.schemas.machines.surface import (
    ExternalToolSurfaceBaseState,
    ExternalToolSurfaceFailureCause,
    ExternalToolSurfaceStagedOp,
    McpServerState,
)
from rookery.schemas.surfaces import LOCAL

if TYPE_CHECKING:
    from rookery.actors.surfaces.decider import SessionSurfaces, SurfacesDecider

__all__ = [
    "TakenEntry",
    "complete",
    "evolve_taken",
    "force_removal",
    "report_server",
    "settle",
    "take_up",
]

ACTIVE, REMOVING = ExternalToolSurfaceBaseState.ACTIVE, ExternalToolSurfaceBaseState.REMOVING
_SERVER_INPUTS: Final = {
    McpServerState.PENDING_CONNECT: "apply_connect_pending",
    McpServerState.CONNECTED: "apply_connected",
    McpServerState.FAILED: "apply_failed",
    McpServerState.DISCONNECTED: "apply_disconnected",
}
CALLS_NOTED_MAX = 1_000
"""``call_started`` facts of one removal; a message has a limited size."""


class TakenEntry(msgspec.Struct, frozen=True):
    """The entry of a catalogue that a session has taken up last."""

    sequence: int
    tools: str


def evolve_taken(taken: Map[str, TakenEntry], fact: Any) -> Map[str, TakenEntry]:
    """Fold one fact of the machine."""
    match fact:
        case facts.AddStaged(entry=int(entry)) | facts.ReloadStaged(entry=int(entry)):
            tools = "" if fact.tools is UNSET else fact.tools
            return taken.set(fact.surface_id, TakenEntry(entry, tools))
        case facts.RemoveStaged() if fact.surface_id in taken:
            return taken.delete(fact.surface_id)
    return taken


def take_up(
    decider: SurfacesDecider, state: SessionSurfaces, key: str, command: TakeUp, *, now_ms: int
) -> Sequence[Fact]:
    """Stage the difference and, at a boundary, apply it. A session that serves no turn takes
    nothing up: its next run does."""
    builder = SurfaceFacts(decider, state, key)
    entries = {one.surface: one for one in command.entries}
    if LOCAL in state.surfaces.known_surfaces and not command.without_local:
        entries[LOCAL] = _local_entry(state, command)
    try:
        if _loses_local(state, command):
            _begin_with_local(builder, now_ms)
        for on, surface, entry in _difference(builder.state, entries):
            params = {"surface_id": surface, "now_ms": now_ms}
            if entry is None:
                builder.put(on, params, entry=command.catalogued)
            else:
                builder.put(on, params, entry=entry.sequence, tools=entry.tools)
        if command.boundary is None:
            return builder.facts
        _apply_staged(builder, command, now_ms)
        if builder.facts or state.catalogued != command.catalogued:
            builder.align(command.catalogued)
    except TransitionRejected:
        return ()
    return builder.facts


def complete(
    decider: SurfacesDecider, state: SessionSurfaces, key: str, command: CompleteSurface
) -> Sequence[Fact]:
    """End a job, if it is the present one."""
    surfaces, name = state.surfaces, command.surface
    numbers = (
        surfaces.pending_task_sequence.get(name),
        surfaces.pending_lineage_sequence.get(name),
    )
    if numbers != (command.task, command.lineage):
        return ()
    builder = SurfaceFacts(decider, state, key)
    if command.is_server:
        reached = McpServerState.FAILED if command.error else McpServerState.CONNECTED
        builder.set_server(name, reached, command.error)
    params: dict[str, Any] = {
        "surface_id": name,
        "task_seq": command.task,
        "lineage_seq": command.lineage,
    }
    try:
        if command.error:
            cause = ExternalToolSurfaceFailureCause.PENDING_FAILED
            params["cause"] = cause.value
            builder.put("mark_pending_failed", params, error=command.error)
        else:
            taken = state.taken.get(name)
            tools = UNSET if taken is None else taken.tools
            builder.put("mark_pending_succeeded", params, tools=tools)
            builder.align()
    except TransitionRejected:  # No turn is served: the next run tries again.
        return ()
    return builder.facts


def report_server(
    decider: SurfacesDecider, state: SessionSurfaces, key: str, report: ReportServer
) -> Sequence[Fact]:
    """Record a new state of the connection to a server that the session has."""
    builder = SurfaceFacts(decider, state, key)
    if report.surface in state.servers.mcp_server_states:
        builder.set_server(report.surface, report.state, report.error)
    return builder.facts


def settle(
    decider: SurfacesDecider, state: SessionSurfaces, key: str, command: SettleRemoval
) -> Sequence[Fact]:
    """End the noted calls that are over. Without a call the removal is final."""
    name = command.surface
    if state.surfaces.removal_timeout_at_ms.get(name) != command.timeout_at_ms:
        return ()
    if command.in_flight:
        return ()  # The calls that have ended are noted with the last one.
    builder, params = SurfaceFacts(decider, state, key), {"surface_id": name}
    try:
        for _ in range(state.surfaces.inflight_calls.get(name, 0)):
            builder.put("call_finished", params)
        builder.put("finalize_removal_clean", params)
        builder.align()
    except TransitionRejected:
        return ()
    return builder.facts


def force_removal(
    decider: SurfacesDecider, state: SessionSurfaces, key: str, surface: str, timeout_at_ms: int
) -> Sequence[Fact]:
    """Remove a surface whose calls took too long."""
    if state.surfaces.removal_timeout_at_ms.get(surface) != timeout_at_ms:
        return ()
    builder = SurfaceFacts(decider, state, key)
    try:
        builder.put("finalize_removal_forced", {"surface_id": surface})
        builder.align()
    except TransitionRejected:
        return ()
    return builder.facts


def _difference(
    state: SessionSurfaces, entries: Mapping[str, OfferedSurface]
) -> Iterator[tuple[str, str, OfferedSurface | None]]:
    """The input that stages each surface whose entry the session has not taken up."""
    for name in sorted(state.taken.keys() - entries.keys()):
        yield "stage_remove", name, None
    for name, entry in sorted(entries.items()):
        taken = state.taken.get(name)
        if taken is None or (taken.sequence, taken.tools) != (entry.sequence, entry.tools):
            is_active = name in state.surfaces.active_surfaces
            yield "stage_reload" if is_active else "stage_add", name, entry


# The functions of nodes, the surface ``local``: every session begins with it, and takes up nothing.
# It is in the machine of a session only once the realm has removed it under a run.


def _local_entry(state: SessionSurfaces, command: TakeUp) -> OfferedSurface:
    """The functions, which the realm has and which were removed from the session before."""
    taken = state.taken.get(LOCAL) or TakenEntry(command.catalogued, "")
    return OfferedSurface(surface=LOCAL, tools=taken.tools, sequence=taken.sequence)


def _loses_local(state: SessionSurfaces, command: TakeUp) -> bool:
    """Whether the run of the session has the functions, and is to lose them."""
    surfaces = state.surfaces
    return (
        command.sees_functions
        and state.catalogued < command.without_local
        and LOCAL not in state.taken
        and surfaces.staged_op.get(LOCAL) is not ExternalToolSurfaceStagedOp.REMOVE
        and surfaces.base_state.get(LOCAL) is not REMOVING
    )


def _begin_with_local(builder: SurfaceFacts, now_ms: int) -> None:
    """Record that the session has the functions since the start of its run."""
    params = {"surface_id": LOCAL}
    builder.put("stage_add", {**params, "now_ms": now_ms}, entry=0, tools="")
    staged = builder.state.surfaces.staged_intent_sequence[LOCAL]
    builder.put(
        "apply_boundary", {**params, "now_ms": now_ms, "staged_seq": staged, "applied_at_turn": 0}
    )
    task = builder.state.surfaces.pending_task_sequence[LOCAL]
    builder.put("mark_pending_succeeded", {**params, "task_seq": task, "lineage_seq": staged})


def _apply_staged(builder: SurfaceFacts, command: TakeUp, now_ms: int) -> None:
    """Apply each staged intent, unless a job or a removal of its surface is under way. The calls of
    a surface to be removed are noted before."""
    surfaces = builder.state.surfaces
    for name, staged in sorted(surfaces.staged_op.items()):
        if staged is ExternalToolSurfaceStagedOp.REMOVE and name in surfaces.active_surfaces:
            noted = surfaces.inflight_calls.get(name, 0)
            calls = min(command.in_flight.get(name, 0), CALLS_NOTED_MAX)
            for _ in range(calls - noted):
                builder.put("call_started", {"surface_id": name})
        params = {
            "surface_id": name,
            "now_ms": now_ms,
            "staged_seq": surfaces.staged_intent_sequence[name],
            "applied_at_turn": command.boundary,
        }
        try:
            builder.put("apply_boundary", params)
        except TransitionRejected:
            continue


class SurfaceFacts(FactBuilder["SessionSurfaces", Any]):
    """The facts of one decision about a session's surfaces."""

    def __init__(self, decider: SurfacesDecider, state: SessionSurfaces, key: str) -> None:
        super().__init__(state, decider.evolve)
        self._decider, self._key = decider, key

    def put(self, on: str, params: Mapping[str, Any], **fields: Any) -> None:
        """Add the fact of a machine's input, with these fields set."""
        (fact,) = self._decider.decide_input(self.state, self._key, on, params)
        for name, value in fields.items():
            force_setattr(fact, name, value)
        self.add(fact)

    def set_server(self, server: str, reached: McpServerState, error: str) -> None:
        """Let the server's machine have this state, unless it has it or the session is gone."""
        if self.state.servers.mcp_server_states.get(server) is reached:
            return
        params = {"server_id": server}
        if reached is McpServerState.FAILED:
            params["error"] = error
        with suppress(TransitionRejected):
            self.put(_SERVER_INPUTS[reached], params)

    def align(self, catalogued: int | None = None) -> None:
        """The session's list of tools is the one of this epoch from now on."""
        number = UNSET if catalogued is None else catalogued
        params = {"epoch": self.state.surfaces.snapshot_epoch}
        self.put("snapshot_aligned", params, catalogued=number)
