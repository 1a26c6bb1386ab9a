"""ExternalToolSurfaceHandle and McpServerLifecycleHandle: the two machines for callers in the
process.

An input is the fact it would leave, named as in ``schemas/facts/surface``.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from rookery.actors.kernel.machines import ATTACHED, Authority, SessionHost, TransitionEffect
from rookery.actors.surfaces import views
from rookery.actors.surfaces.mcp_server_machine import MCP_SERVERS, pending_server_ids
from rookery.actors.surfaces.surface_machine import SURFACES
from rookery.schemas.facts.surface import SurfaceFact
from rookery.schemas.machines.surface import (
    ExternalToolSurfaceFailureCause,
    ExternalToolSurfaceGlobalPhase,
    SurfaceDiagnosticSnapshot,
    SurfaceSnapshot,
)

__all__ = [
    "ExternalToolSurfaceHandle",
    "ExternalToolSurfaceTransition",
    "McpServerLifecycleHandle",
]

_INPUTS = {each.fact: name for name, each in SURFACES.inputs.items()}


class ExternalToolSurfaceTransition(msgspec.Struct, frozen=True, kw_only=True):
    """The state after an input, and its effects."""

    phase: ExternalToolSurfaceGlobalPhase
    effects: tuple[TransitionEffect, ...]


class ExternalToolSurfaceHandle:
    """A handle without an authority has no session and is attached from the start."""

    def __init__(self, authority: Authority | None = None) -> None:
        self._authority = authority or Authority(SessionHost(phase=ATTACHED))

    def apply_surface_input(self, surface_input: SurfaceFact) -> ExternalToolSurfaceTransition:
        draft, on = replace(surface_input), _INPUTS[type(surface_input)]
        with self._authority as authority:
            effects = authority.decide(SURFACES, on, draft)
            phase = authority.read(SURFACES).phase
            return ExternalToolSurfaceTransition(phase=phase, effects=effects)

    # --- inputs -----------------------------------------------------------------------------------

    def register(self, surface_id: str) -> None:
        self._put("register", surface_id=surface_id)

    def stage_add(self, surface_id: str, now_ms: int) -> None:
        self._put("stage_add", surface_id=surface_id, now_ms=now_ms)

    def stage_remove(self, surface_id: str, now_ms: int) -> None:
        self._put("stage_remove", surface_id=surface_id, now_ms=now_ms)

    def stage_reload(self, surface_id: str, now_ms: int) -> None:
        self._put("stage_reload", surface_id=surface_id, now_ms=now_ms)

    def apply_boundary(
        self, surface_id: str, now_ms: int, staged_intent_sequence: int, applied_at_turn: int
    ) -> None:
        self._put(
            "apply_boundary",
            surface_id=surface_id,
            now_ms=now_ms,
            staged_seq=staged_intent_sequence,
            applied_at_turn=applied_at_turn,
        )

    def mark_pending_succeeded(
        self, surface_id: str, pending_task_sequence: int, staged_intent_sequence: int
    ) -> None:
        self._put(
            "mark_pending_succeeded",
            surface_id=surface_id,
            task_seq=pending_task_sequence,
            lineage_seq=staged_intent_sequence,
        )

    def mark_pending_failed(
        self,
        surface_id: str,
        pending_task_sequence: int,
        staged_intent_sequence: int,
        cause: ExternalToolSurfaceFailureCause,
    ) -> None:
        self._put(
            "mark_pending_failed",
            surface_id=surface_id,
            task_seq=pending_task_sequence,
            lineage_seq=staged_intent_sequence,
            cause=cause,
        )

    def call_started(self, surface_id: str) -> None:
        """The effects of ``apply_surface_input`` say whether the call is permitted."""
        self._put("call_started", surface_id=surface_id)

    def call_finished(self, surface_id: str) -> None:
        self._put("call_finished", surface_id=surface_id)

    def finalize_removal_clean(self, surface_id: str) -> None:
        self._put("finalize_removal_clean", surface_id=surface_id)

    def finalize_removal_forced(self, surface_id: str) -> None:
        self._put("finalize_removal_forced", surface_id=surface_id)

    def snapshot_aligned(self, epoch: int) -> None:
        self._put("snapshot_aligned", epoch=epoch)

    def shutdown_surface(self) -> None:
        self._put("shutdown_surface")

    # --- looks ------------------------------------------------------------------------------------

    def surface_snapshot(self, surface_id: str) -> SurfaceSnapshot | None:
        return views.surface_snapshot(self._authority.read(SURFACES), surface_id)

    def diagnostic_snapshot(self) -> SurfaceDiagnosticSnapshot:
        return views.diagnostic_snapshot(self._authority.read(SURFACES))

    def visible_surfaces(self) -> frozenset[str]:
        return self._authority.read(SURFACES).visible_surfaces

    def removing_surfaces(self) -> frozenset[str]:
        return frozenset(views.removing_surfaces(self._authority.read(SURFACES)))

    def pending_surfaces(self) -> frozenset[str]:
        return frozenset(views.pending_surfaces(self._authority.read(SURFACES)))

    def has_pending_or_staged(self) -> bool:
        return views.has_pending_or_staged(self._authority.read(SURFACES))

    def snapshot_epoch(self) -> int:
        return self._authority.read(SURFACES).snapshot_epoch

    def snapshot_aligned_epoch(self) -> int:
        return self._authority.read(SURFACES).snapshot_aligned_epoch

    def _put(self, on: str, **params: Any) -> None:
        self._authority.apply(SURFACES, on, params)


class McpServerLifecycleHandle:
    """For the client of MCP servers; the last input about a server wins."""

    def __init__(self, authority: Authority | None = None) -> None:
        self._authority = authority or Authority()

    def apply_connect_pending(self, server_id: str) -> None:
        self._put("apply_connect_pending", server_id=server_id)

    def apply_connected(self, server_id: str) -> None:
        self._put("apply_connected", server_id=server_id)

    def apply_failed(self, server_id: str, error: str) -> None:
        self._put("apply_failed", server_id=server_id, error=error)

    def apply_disconnected(self, server_id: str) -> None:
        self._put("apply_disconnected", server_id=server_id)

    def apply_reload(self, server_id: str) -> None:
        self._put("apply_reload", server_id=server_id)

    def pending_server_ids(self) -> frozenset[str]:
        return frozenset(pending_server_ids(self._authority.read(MCP_SERVERS)))

    def _put(self, on: str, **params: Any) -> None:
        self._authority.apply(MCP_SERVERS, on, params)
