"""``ExternalToolSurfaceHandle`` and ``McpServerLifecycleHandle``: a session's tools from outside.

    surfaces = ExternalToolSurfaceHandle(client, "demo")
    view = await surfaces.stage_add("github", now_ms)
    await surfaces.visible_surfaces()       # frozenset({"github"}) once its job has succeeded

``apply_surface_input`` takes an input as the fact that it would leave and returns its effects.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from rookery.bus.client.machines.machine_handle import SessionMachineHandle, effects_of
from rookery.schemas.envelope import TransitionFact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import surface as facts
from rookery.schemas.machines.surface import (
    ExternalToolSurfaceBaseState,
    ExternalToolSurfaceFailureCause,
    ExternalToolSurfaceGlobalPhase,
    ExternalToolSurfacePendingOp,
    SurfaceDiagnosticSnapshot,
    SurfaceSnapshot,
)
from rookery.schemas.machines.transition import ExternalToolSurfaceEffect
from rookery.schemas.machines.views import McpServersView, SurfacesView, SurfaceView

__all__ = [
    "ExternalToolSurfaceHandle",
    "ExternalToolSurfaceTransition",
    "McpServerLifecycleHandle",
]

_INPUTS: Final[dict[type[facts.SurfaceFact], str]] = {
    facts.Registered: "register",
    facts.AddStaged: "stage_add",
    facts.RemoveStaged: "stage_remove",
    facts.ReloadStaged: "stage_reload",
    facts.BoundaryApplied: "apply_boundary",
    facts.PendingSucceeded: "mark_pending_succeeded",
    facts.PendingFailed: "mark_pending_failed",
    facts.CallStarted: "call_started",
    facts.CallFinished: "call_finished",
    facts.RemovalFinalized: "finalize_removal_clean",
    facts.RemovalForced: "finalize_removal_forced",
    facts.SnapshotAligned: "snapshot_aligned",
    facts.ShutDown: "shutdown_surface",
}


class ExternalToolSurfaceTransition(msgspec.Struct, frozen=True, kw_only=True):
    """The state after an input, and its effects."""

    phase: ExternalToolSurfaceGlobalPhase
    effects: tuple[ExternalToolSurfaceEffect, ...]


class ExternalToolSurfaceHandle(SessionMachineHandle):
    """The surfaces of a session; inputs return the view of all of them."""

    verb: ClassVar[str] = "surfaces"

    async def apply_surface_input(
        self, surface_input: facts.SurfaceFact
    ) -> ExternalToolSurfaceTransition:
        """Apply an input given as a fact without an envelope; the effects it requests."""
        on = _INPUTS.get(type(surface_input))
        if on is None:
            kind = type(surface_input).__name__
            raise Refused("INVALID_ARGUMENT", f"{kind} is not an input of the surfaces")
        view = await self._input(on, **_parameters(surface_input))
        effects = effects_of(view.effects, on)
        return ExternalToolSurfaceTransition(
            phase=view.surface_phase,
            effects=msgspec.convert(effects, tuple[ExternalToolSurfaceEffect, ...]),
        )

    # --- inputs -----------------------------------------------------------------------------------

    async def register(self, surface_id: str) -> SurfacesView:
        return await self._input("register", surface_id=surface_id)

    async def stage_add(self, surface_id: str, now_ms: int) -> SurfacesView:
        return await self._input("stage_add", surface_id=surface_id, now_ms=now_ms)

    async def stage_remove(self, surface_id: str, now_ms: int) -> SurfacesView:
        return await self._input("stage_remove", surface_id=surface_id, now_ms=now_ms)

    async def stage_reload(self, surface_id: str, now_ms: int) -> SurfacesView:
        return await self._input("stage_reload", surface_id=surface_id, now_ms=now_ms)

    async def apply_boundary(
        self, surface_id: str, now_ms: int, staged_intent_sequence: int, applied_at_turn: int
    ) -> SurfacesView:
        return await self._input(
            "apply_boundary",
            surface_id=surface_id,
            now_ms=now_ms,
            staged_seq=staged_intent_sequence,
            applied_at_turn=applied_at_turn,
        )

    async def mark_pending_succeeded(
        self, surface_id: str, pending_task_sequence: int, staged_intent_sequence: int
    ) -> SurfacesView:
        return await self._input(
            "mark_pending_succeeded",
            surface_id=surface_id,
            task_seq=pending_task_sequence,
            lineage_seq=staged_intent_sequence,
        )

    async def mark_pending_failed(
        self,
        surface_id: str,
        pending_task_sequence: int,
        staged_intent_sequence: int,
        cause: ExternalToolSurfaceFailureCause,
    ) -> SurfacesView:
        return await self._input(
            "mark_pending_failed",
            surface_id=surface_id,
            task_seq=pending_task_sequence,
            lineage_seq=staged_intent_sequence,
            cause=cause,
        )

    async def call_started(self, surface_id: str) -> SurfacesView:
        """The view's effects say whether the call is permitted: ``RejectSurfaceCall`` refuses."""
        return await self._input("call_started", surface_id=surface_id)

    async def call_finished(self, surface_id: str) -> SurfacesView:
        return await self._input("call_finished", surface_id=surface_id)

    async def finalize_removal_clean(self, surface_id: str) -> SurfacesView:
        return await self._input("finalize_removal_clean", surface_id=surface_id)

    async def finalize_removal_forced(self, surface_id: str) -> SurfacesView:
        return await self._input("finalize_removal_forced", surface_id=surface_id)

    async def snapshot_aligned(self, epoch: int) -> SurfacesView:
        return await self._input("snapshot_aligned", epoch=epoch)

    async def shutdown_surface(self) -> SurfacesView:
        return await self._input("shutdown_surface")

    # --- reads ------------------------------------------------------------------------------------

    async def surface_snapshot(self, surface_id: str) -> SurfaceSnapshot | None:
        """One surface; ``None`` if it is unknown."""
        view = await self._put(SurfaceView, "surface_snapshot", surface_id=surface_id)
        return view.surface

    async def diagnostic_snapshot(self) -> SurfaceDiagnosticSnapshot:
        return await self._input("diagnostic_snapshot")

    async def visible_surfaces(self) -> frozenset[str]:
        return frozenset((await self._input("visible_surfaces")).visible_surfaces)

    async def removing_surfaces(self) -> frozenset[str]:
        entries = (await self._input("removing_surfaces")).entries
        removing = ExternalToolSurfaceBaseState.REMOVING
        return frozenset(one.surface_id for one in entries if one.base_state is removing)

    async def pending_surfaces(self) -> frozenset[str]:
        entries = (await self._input("pending_surfaces")).entries
        idle = ExternalToolSurfacePendingOp.NONE
        return frozenset(one.surface_id for one in entries if one.pending_op is not idle)

    async def has_pending_or_staged(self) -> bool:
        return (await self._input("has_pending_or_staged")).has_pending_or_staged

    async def snapshot_epoch(self) -> int:
        return (await self._input("snapshot_epoch")).snapshot_epoch

    async def snapshot_aligned_epoch(self) -> int:
        return (await self._input("snapshot_aligned_epoch")).snapshot_aligned_epoch

    async def _input(self, on: str, /, **params: Any) -> SurfacesView:
        return await self._put(SurfacesView, on, **params)


def _parameters(surface_input: facts.SurfaceFact) -> dict[str, Any]:
    """The fields beside the envelope's; ``cause_in`` has its suffix because the envelope has a
    ``cause`` too."""
    names = set(surface_input.__struct_fields__) - set(TransitionFact.__struct_fields__)
    return {name.removesuffix("_in"): getattr(surface_input, name) for name in names}


class McpServerLifecycleHandle(SessionMachineHandle):
    """For the client of MCP servers; the last input about a server wins."""

    verb: ClassVar[str] = "surfaces"

    async def apply_connect_pending(self, server_id: str) -> McpServersView:
        return await self._server("apply_connect_pending", server_id=server_id)

    async def apply_connected(self, server_id: str) -> McpServersView:
        return await self._server("apply_connected", server_id=server_id)

    async def apply_failed(self, server_id: str, error: str) -> McpServersView:
        return await self._server("apply_failed", server_id=server_id, error=error)

    async def apply_disconnected(self, server_id: str) -> McpServersView:
        return await self._server("apply_disconnected", server_id=server_id)

    async def apply_reload(self, server_id: str) -> McpServersView:
        return await self._server("apply_reload", server_id=server_id)

    async def pending_server_ids(self) -> frozenset[str]:
        return frozenset((await self._server("pending_server_ids")).pending_server_ids)

    async def _server(self, on: str, /, **params: Any) -> McpServersView:
        return await self._put(McpServersView, on, **params)
