"""The surfaces of a session: their state, how transitions change it, and its views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from immutables import Map
from msgspec.structs import replace

from rookery.actors.kernel.machines import SessionHost
from rookery.schemas.facts import surface as facts
from rookery.schemas.machines.surface import (
    ExternalToolSurfaceBaseState,
    ExternalToolSurfaceDeltaOperation,
    ExternalToolSurfaceDeltaPhase,
    ExternalToolSurfaceGlobalPhase,
    ExternalToolSurfacePendingOp,
    ExternalToolSurfaceStagedOp,
    SurfaceDiagnosticSnapshot,
    SurfaceSnapshot,
)
from rookery.schemas.scalars import saturate

__all__ = [
    "INVARIANTS",
    "Surfaces",
    "add_known",
    "clear_calls",
    "clear_job",
    "combine",
    "count_call",
    "delta",
    "delta_failed",
    "diagnostic_snapshot",
    "has_pending_or_staged",
    "hide",
    "next_epoch",
    "pending_surfaces",
    "show",
    "stage",
    "start_draining",
    "start_job",
    "stop_draining",
    "surface_snapshot",
    "uncount_call",
    "unstage",
    "visible_surfaces",
]

# --- state ----------------------------------------------------------------------------------------

# The surfaces of a session, and the changes that transitions are composed of.
#
# Every change names the variables it sets, so that the changes of one transition can be compared
# and none hides another.


class Surfaces(msgspec.Struct, frozen=True, kw_only=True):
    """All surfaces of a session, by id; a missing key means none, or 0."""

    host: SessionHost = SessionHost()
    phase: ExternalToolSurfaceGlobalPhase = ExternalToolSurfaceGlobalPhase.OPERATING
    known_surfaces: frozenset[str] = frozenset()
    active_surfaces: frozenset[str] = frozenset()
    visible_surfaces: frozenset[str] = frozenset()
    base_state: Map[str, ExternalToolSurfaceBaseState] = Map()
    pending_op: Map[str, ExternalToolSurfacePendingOp] = Map()
    staged_op: Map[str, ExternalToolSurfaceStagedOp] = Map()
    reload_staged_surfaces: frozenset[str] = frozenset()
    staged_intent_sequence: Map[str, int] = Map()
    """Counted over all surfaces: no number is used twice."""
    next_staged_intent_sequence: int = 0
    pending_task_sequence: Map[str, int] = Map()
    """Counted over all surfaces; 0 once the job has ended."""
    next_pending_task_sequence: int = 0
    pending_lineage_sequence: Map[str, int] = Map()
    inflight_calls: Map[str, int] = Map()
    last_delta_operation: Map[str, ExternalToolSurfaceDeltaOperation] = Map()
    last_delta_phase: Map[str, ExternalToolSurfaceDeltaPhase] = Map()
    snapshot_epoch: int = 0
    snapshot_aligned_epoch: int = 0
    """The epoch the consumer last reported; equal to ``snapshot_epoch`` by convention only."""
    removal_draining_since_ms: Map[str, int] = Map()
    removal_timeout_at_ms: Map[str, int] = Map()
    removal_applied_at_turn: Map[str, int] = Map()
    removal_timeout_ms: int = 30_000


# --- invariants ---------------------------------------------------------------------------------


def staged_surface_ops_are_known_and_sequenced(s: Surfaces) -> bool:
    return all(i in s.known_surfaces and i in s.staged_intent_sequence for i in s.staged_op)


def staged_reload_surfaces_are_active(s: Surfaces) -> bool:
    return s.reload_staged_surfaces <= s.active_surfaces


INVARIANTS = (staged_surface_ops_are_known_and_sequenced, staged_reload_surfaces_are_active)


# --- changes ------------------------------------------------------------------------------------

V = TypeVar("V")
Changes = dict[str, Any]
"""New values by variable."""
Change = Callable[[Surfaces, Any], Changes]


def combine(*parts: Change) -> Callable[[Surfaces, Any], Surfaces]:
    """The composition of changes to different variables."""
    if len(parts) == 1:
        only = parts[0]
        return lambda s, a: replace(s, **only(s, a))

    def then(s: Surfaces, a: Any) -> Surfaces:
        changes: Changes = {}
        for part in parts:
            changes |= part(s, a)
        return replace(s, **changes)

    return then


def without(values: Map[str, V], key: str) -> Map[str, V]:
    return values.delete(key) if key in values else values


def add_known(s: Surfaces, a: Any) -> Changes:
    known = s.known_surfaces
    return {} if a.surface_id in known else {"known_surfaces": known | {a.surface_id}}


def stage(operation: ExternalToolSurfaceStagedOp) -> Change:
    """Stage an intent under a new number; the last one wins."""
    is_reload = operation is ExternalToolSurfaceStagedOp.RELOAD

    def change(s: Surfaces, a: Any) -> Changes:
        number = saturate(s.next_staged_intent_sequence + 1)
        reloads, marked = s.reload_staged_surfaces, {a.surface_id}
        return {
            "staged_op": s.staged_op.set(a.surface_id, operation),
            "reload_staged_surfaces": reloads | marked if is_reload else reloads - marked,
            "next_staged_intent_sequence": number,
            "staged_intent_sequence": s.staged_intent_sequence.set(a.surface_id, number),
        }

    return change


def unstage(s: Surfaces, a: Any) -> Changes:
    return {
        "staged_op": without(s.staged_op, a.surface_id),
        "staged_intent_sequence": without(s.staged_intent_sequence, a.surface_id),
        "reload_staged_surfaces": s.reload_staged_surfaces - {a.surface_id},
    }


def start_job(operation: ExternalToolSurfacePendingOp) -> Change:
    def change(s: Surfaces, a: facts.BoundaryApplied) -> Changes:
        number = saturate(s.next_pending_task_sequence + 1)
        return {
            "next_pending_task_sequence": number,
            "pending_op": s.pending_op.set(a.surface_id, operation),
            "pending_task_sequence": s.pending_task_sequence.set(a.surface_id, number),
            "pending_lineage_sequence": s.pending_lineage_sequence.set(a.surface_id, a.staged_seq),
        }

    return change


def clear_job(s: Surfaces, a: Any) -> Changes:
    return {
        "pending_op": s.pending_op.set(a.surface_id, ExternalToolSurfacePendingOp.NONE),
        "pending_task_sequence": s.pending_task_sequence.set(a.surface_id, 0),
        "pending_lineage_sequence": s.pending_lineage_sequence.set(a.surface_id, 0),
    }


def show(s: Surfaces, a: Any) -> Changes:
    return {
        "base_state": s.base_state.set(a.surface_id, ExternalToolSurfaceBaseState.ACTIVE),
        "active_surfaces": s.active_surfaces | {a.surface_id},
        "visible_surfaces": s.visible_surfaces | {a.surface_id},
    }


def hide(left_as: ExternalToolSurfaceBaseState) -> Change:
    return lambda s, a: {
        "base_state": s.base_state.set(a.surface_id, left_as),
        "active_surfaces": s.active_surfaces - {a.surface_id},
        "visible_surfaces": s.visible_surfaces - {a.surface_id},
    }


def start_draining(s: Surfaces, a: facts.BoundaryApplied) -> Changes:
    timeout_at_ms = saturate(a.now_ms + s.removal_timeout_ms)
    return {
        "removal_draining_since_ms": s.removal_draining_since_ms.set(a.surface_id, a.now_ms),
        "removal_timeout_at_ms": s.removal_timeout_at_ms.set(a.surface_id, timeout_at_ms),
        "removal_applied_at_turn": s.removal_applied_at_turn.set(a.surface_id, a.applied_at_turn),
    }


def stop_draining(s: Surfaces, a: Any) -> Changes:
    return {
        "removal_draining_since_ms": without(s.removal_draining_since_ms, a.surface_id),
        "removal_timeout_at_ms": without(s.removal_timeout_at_ms, a.surface_id),
        "removal_applied_at_turn": without(s.removal_applied_at_turn, a.surface_id),
    }


def count_call(s: Surfaces, a: Any) -> Changes:
    calls = saturate(s.inflight_calls.get(a.surface_id, 0) + 1)
    return {"inflight_calls": s.inflight_calls.set(a.surface_id, calls)}


def uncount_call(s: Surfaces, a: Any) -> Changes:
    calls = max(s.inflight_calls.get(a.surface_id, 0) - 1, 0)
    return {"inflight_calls": s.inflight_calls.set(a.surface_id, calls)}


def clear_calls(s: Surfaces, a: Any) -> Changes:
    return {"inflight_calls": s.inflight_calls.set(a.surface_id, 0)}


def delta(
    operation: ExternalToolSurfaceDeltaOperation, phase: ExternalToolSurfaceDeltaPhase
) -> Change:
    return lambda s, a: {
        "last_delta_operation": s.last_delta_operation.set(a.surface_id, operation),
        "last_delta_phase": s.last_delta_phase.set(a.surface_id, phase),
    }


def delta_failed(s: Surfaces, a: Any) -> Changes:
    """Keep the operation of the failed job."""
    failed = ExternalToolSurfaceDeltaPhase.FAILED
    return {"last_delta_phase": s.last_delta_phase.set(a.surface_id, failed)}


def next_epoch(s: Surfaces, _: Any) -> Changes:
    return {"snapshot_epoch": saturate(s.snapshot_epoch + 1)}


# --- views ----------------------------------------------------------------------------------------

# Views of the surfaces of a session: pure functions of the state. Lists are sorted by surface
# id.


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
