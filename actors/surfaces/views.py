"""Views of the surfaces of a session: pure functions of the state. Lists are sorted by surface
id."""

from __future__ import annotations

from rookery.actors.surfaces.state import Surfaces
from rookery.schemas.machines.surface import (
    ExternalToolSurfacePendingOp,
    ExternalToolSurfaceStagedOp,
    SurfaceDiagnosticSnapshot,
    SurfaceSnapshot,
)

__all__ = [
    "diagnostic_snapshot",
    "has_pending_or_staged",
    "pending_surfaces",
    "surface_snapshot",
    "visible_surfaces",
]


def diagnostic_snapshot(state: Surfaces) -> SurfaceDiagnosticSnapshot:
    """The whole state, with an entry for each known surface."""
    known = tuple(sorted(state.known_surfaces))
    return SurfaceDiagnosticSnapshot(
        surface_phase=state.phase,
        known_surfaces=known,
        visible_surfaces=visible_surfaces(state),
        snapshot_epoch=state.snapshot_epoch,
        snapshot_aligned_epoch=state.snapshot_aligned_epoch,
        has_pending_or_staged=has_pending_or_staged(state),
        entries=tuple(_snapshot_entry(state, surface_id) for surface_id in known),
    )


def surface_snapshot(state: Surfaces, surface_id: str) -> SurfaceSnapshot | None:
    """One surface; ``None`` if it is unknown."""
    return _snapshot_entry(state, surface_id) if surface_id in state.known_surfaces else None


def visible_surfaces(state: Surfaces) -> tuple[str, ...]:
    """Surfaces whose tools are visible."""
    return tuple(sorted(state.visible_surfaces))


def pending_surfaces(state: Surfaces) -> tuple[str, ...]:
    """Surfaces with an active job."""
    idle = ExternalToolSurfacePendingOp.NONE
    return tuple(sorted(i for i, job in state.pending_op.items() if job is not idle))


def has_pending_or_staged(state: Surfaces) -> bool:
    """Whether a job is active or an intent waits for a boundary."""
    return bool(pending_surfaces(state) or state.staged_op)


def _snapshot_entry(state: Surfaces, surface_id: str) -> SurfaceSnapshot:
    return SurfaceSnapshot(
        surface_id=surface_id,
        base_state=state.base_state.get(surface_id),
        pending_op=state.pending_op.get(surface_id, ExternalToolSurfacePendingOp.NONE),
        staged_op=state.staged_op.get(surface_id, ExternalToolSurfaceStagedOp.NONE),
        staged_intent_sequence=state.staged_intent_sequence.get(surface_id),
        pending_task_sequence=state.pending_task_sequence.get(surface_id),
        pending_lineage_sequence=state.pending_lineage_sequence.get(surface_id),
        inflight_calls=state.inflight_calls.get(surface_id, 0),
        last_delta_operation=state.last_delta_operation.get(surface_id),
        last_delta_phase=state.last_delta_phase.get(surface_id),
        removal_draining_since_ms=state.removal_draining_since_ms.get(surface_id),
        removal_timeout_at_ms=state.removal_timeout_at_ms.get(surface_id),
        removal_applied_at_turn=state.removal_applied_at_turn.get(surface_id),
    )
