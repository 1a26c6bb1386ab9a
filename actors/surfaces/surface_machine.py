"""external_tool_surface: which surfaces a session has, and what they may be asked.

Changes are staged by anybody at any time and taken up at a turn's boundary; additions and reloads
are jobs that come back later, removals drain first. Two numbers keep the late from doing harm: a
boundary quotes the staged intent it saw, a completion quotes the job and the intent it was for.
Connecting, closing and calling are done by whoever reads the effects; there is no clock here, so
when a removal is to be forced is for the caller to say.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from rookery.actors.kernel.machines.machine import Input, Machine, Row, RowEffect, put
from rookery.actors.kernel.machines.session_host import ATTACHED, RUNNING
from rookery.actors.surfaces.state import (
    INVARIANTS,
    Surfaces,
    changed,
    clear_job,
    count_call,
    delta,
    delta_failed,
    forget_calls,
    hide,
    know,
    next_epoch,
    show,
    stage,
    start_draining,
    start_job,
    stop_draining,
    uncount_call,
    unstage,
)
from rookery.schemas.facts import surface as facts
from rookery.schemas.machines.surface import ExternalToolSurfaceBaseState as Base
from rookery.schemas.machines.surface import ExternalToolSurfaceDeltaOperation as Operation
from rookery.schemas.machines.surface import ExternalToolSurfaceDeltaPhase as Phase
from rookery.schemas.machines.surface import ExternalToolSurfaceFailureCause as Cause
from rookery.schemas.machines.surface import ExternalToolSurfaceGlobalPhase as GlobalPhase
from rookery.schemas.machines.surface import ExternalToolSurfacePendingOp as PendingOp
from rookery.schemas.machines.surface import ExternalToolSurfaceStagedOp as StagedOp

__all__ = [
    "SURFACES",
    "CloseSurfaceConnection",
    "EmitExternalToolDelta",
    "RefreshVisibleSurfaceSet",
    "RejectSurfaceCall",
    "ScheduleSurfaceCompletion",
]

OPERATING, SHUTDOWN = GlobalPhase
ABSENT, ACTIVE, REMOVING, REMOVED = Base
NO_JOB = PendingOp.NONE
SERVED = (ATTACHED, RUNNING)
"""Where somebody is there to run turns; no session needs to be registered."""


# --- effects ------------------------------------------------------------------------------------


class ScheduleSurfaceCompletion(RowEffect, frozen=True, kw_only=True):
    """The job is to be done, and its end to be told with both numbers."""

    surface_id: str
    operation: Operation
    pending_task_sequence: int
    staged_intent_sequence: int
    applied_at_turn: int


class RefreshVisibleSurfaceSet(RowEffect, frozen=True, kw_only=True):
    """Other tools may be visible now; whoever shows them answers with this epoch."""

    snapshot_epoch: int


class EmitExternalToolDelta(RowEffect, frozen=True, kw_only=True):
    """A change of a surface has come this far."""

    surface_id: str
    operation: Operation
    phase: Phase
    cause: Cause | None = None


class CloseSurfaceConnection(RowEffect, frozen=True, kw_only=True):
    """Nobody needs the surface's connection any more."""

    surface_id: str


class RejectSurfaceCall(RowEffect, frozen=True, kw_only=True):
    """The call must not be made."""

    surface_id: str
    cause: Cause


Effect = Callable[[Surfaces, Any], RowEffect]


def schedule(operation: Operation) -> Effect:
    return lambda s, a: ScheduleSurfaceCompletion(
        surface_id=a.surface_id,
        operation=operation,
        pending_task_sequence=s.next_pending_task_sequence,
        staged_intent_sequence=a.staged_seq,
        applied_at_turn=a.applied_at_turn,
    )


def tell(operation: Operation, phase: Phase) -> Effect:
    return lambda _, a: EmitExternalToolDelta(
        surface_id=a.surface_id, operation=operation, phase=phase
    )


def tell_failure(s: Surfaces, a: facts.PendingFailed) -> RowEffect:
    return EmitExternalToolDelta(
        surface_id=a.surface_id,
        operation=s.last_delta_operation.get(a.surface_id, Operation.NONE),
        phase=Phase.FAILED,
        cause=a.cause_in,
    )


def refresh(s: Surfaces, _: Any) -> RowEffect:
    return RefreshVisibleSurfaceSet(snapshot_epoch=s.snapshot_epoch)


def close(_: Surfaces, a: Any) -> RowEffect:
    return CloseSurfaceConnection(surface_id=a.surface_id)


def reject(cause: Cause) -> Effect:
    return lambda _, a: RejectSurfaceCall(surface_id=a.surface_id, cause=cause)


# --- when rows hold -----------------------------------------------------------------------------


def served(s: Surfaces) -> bool:
    return s.host.phase in SERVED


def open_to_change(s: Surfaces) -> bool:
    return s.phase is OPERATING and served(s)


def takes_up(s: Surfaces, a: facts.BoundaryApplied, staged: StagedOp) -> bool:
    """Whether the boundary saw the intent that stands, and no job is under way."""
    return (
        open_to_change(s)
        and s.staged_op.get(a.surface_id) is staged
        and s.staged_intent_sequence.get(a.surface_id) == a.staged_seq
        and s.pending_op.get(a.surface_id, NO_JOB) is NO_JOB
    )


def of_current_job(s: Surfaces, a: facts.PendingSucceeded | facts.PendingFailed) -> bool:
    return (
        served(s)
        and s.pending_task_sequence.get(a.surface_id) == a.task_seq
        and s.pending_lineage_sequence.get(a.surface_id) == a.lineage_seq
    )


def base(s: Surfaces, a: Any) -> Base:
    return s.base_state.get(a.surface_id, ABSENT)


def calls_remain(s: Surfaces, a: Any) -> bool:
    return s.inflight_calls.get(a.surface_id, 0) > 0


# --- the machine --------------------------------------------------------------------------------

_COMPLETION = ("surface_id", "task_seq", "lineage_seq")
_INPUTS = {
    "register": Input(facts.Registered, ("surface_id",)),
    "stage_add": Input(facts.AddStaged, ("surface_id", "now_ms")),
    "stage_remove": Input(facts.RemoveStaged, ("surface_id", "now_ms")),
    "stage_reload": Input(facts.ReloadStaged, ("surface_id", "now_ms")),
    "apply_boundary": Input(
        facts.BoundaryApplied, ("surface_id", "now_ms", "staged_seq", "applied_at_turn")
    ),
    "mark_pending_succeeded": Input(facts.PendingSucceeded, _COMPLETION),
    "mark_pending_failed": Input(facts.PendingFailed, (*_COMPLETION, "cause")),
    "call_started": Input(facts.CallStarted, ("surface_id",)),
    "call_finished": Input(facts.CallFinished, ("surface_id",)),
    "finalize_removal_clean": Input(facts.RemovalFinalized, ("surface_id",)),
    "finalize_removal_forced": Input(facts.RemovalForced, ("surface_id",)),
    "snapshot_aligned": Input(facts.SnapshotAligned, ("epoch",)),
    "shutdown_surface": Input(facts.ShutDown),
}

# fmt: off
_ROWS = (
    Row("Register", "register",
        lambda s, _: served(s),
        changed(know)),
    Row("StageAdd", "stage_add",
        lambda s, _: open_to_change(s),
        changed(know, stage(StagedOp.ADD))),
    Row("StageRemove", "stage_remove",
        lambda s, _: open_to_change(s),
        changed(know, stage(StagedOp.REMOVE))),
    Row("StageReload", "stage_reload",
        lambda s, a: open_to_change(s) and a.surface_id in s.active_surfaces,
        changed(know, stage(StagedOp.RELOAD))),
    Row("ApplyBoundaryAdd", "apply_boundary",
        lambda s, a: takes_up(s, a, StagedOp.ADD) and base(s, a) is not REMOVING,
        changed(know, start_job(PendingOp.ADD), unstage, delta(Operation.ADD, Phase.PENDING),
                next_epoch),
        (schedule(Operation.ADD), tell(Operation.ADD, Phase.PENDING))),
    Row("ApplyBoundaryReload", "apply_boundary",
        lambda s, a: (takes_up(s, a, StagedOp.RELOAD) and a.surface_id in s.active_surfaces
                      and base(s, a) is ACTIVE),
        changed(know, start_job(PendingOp.RELOAD), unstage,
                delta(Operation.RELOAD, Phase.PENDING), next_epoch),
        (schedule(Operation.RELOAD), tell(Operation.RELOAD, Phase.PENDING))),
    Row("ApplyBoundaryRemoveDraining", "apply_boundary",
        lambda s, a: takes_up(s, a, StagedOp.REMOVE) and base(s, a) is ACTIVE,
        changed(know, clear_job, unstage, hide(REMOVING), start_draining,
                delta(Operation.REMOVE, Phase.DRAINING), next_epoch),
        (refresh, tell(Operation.REMOVE, Phase.DRAINING))),
    Row("ApplyBoundaryRemoveNoop", "apply_boundary",
        lambda s, a: takes_up(s, a, StagedOp.REMOVE) and base(s, a) is not ACTIVE,
        changed(know, clear_job, unstage)),
    Row("MarkPendingSucceededAdd", "mark_pending_succeeded",
        lambda s, a: s.pending_op.get(a.surface_id) is PendingOp.ADD and of_current_job(s, a),
        changed(know, clear_job, show, delta(Operation.ADD, Phase.APPLIED), next_epoch),
        (refresh, tell(Operation.ADD, Phase.APPLIED))),
    Row("MarkPendingSucceededReload", "mark_pending_succeeded",
        lambda s, a: s.pending_op.get(a.surface_id) is PendingOp.RELOAD and of_current_job(s, a),
        changed(know, clear_job, show, delta(Operation.RELOAD, Phase.APPLIED), next_epoch),
        (refresh, tell(Operation.RELOAD, Phase.APPLIED))),
    Row("MarkPendingFailed", "mark_pending_failed",
        of_current_job,
        changed(clear_job, delta_failed),
        (tell_failure,)),
    Row("CallStartedActive", "call_started",
        lambda s, a: served(s) and base(s, a) is ACTIVE,
        changed(count_call)),
    Row("CallStartedRejectRemoving", "call_started",
        lambda s, a: served(s) and base(s, a) is REMOVING,
        effects=(reject(Cause.SURFACE_DRAINING),)),
    Row("CallStartedRejectUnavailable", "call_started",
        lambda s, a: served(s) and base(s, a) not in (ACTIVE, REMOVING),
        effects=(reject(Cause.SURFACE_UNAVAILABLE),)),
    Row("CallFinished", "call_finished",
        lambda s, a: served(s) and base(s, a) in (ACTIVE, REMOVING) and calls_remain(s, a),
        changed(uncount_call)),
    Row("FinalizeRemovalClean", "finalize_removal_clean",
        lambda s, a: served(s) and base(s, a) is REMOVING and not calls_remain(s, a),
        changed(hide(REMOVED), clear_job, stop_draining, delta(Operation.REMOVE, Phase.APPLIED),
                next_epoch),
        (close, refresh, tell(Operation.REMOVE, Phase.APPLIED))),
    Row("FinalizeRemovalForced", "finalize_removal_forced",
        lambda s, a: served(s) and base(s, a) is REMOVING,
        changed(hide(REMOVED), clear_job, forget_calls, stop_draining,
                delta(Operation.REMOVE, Phase.FORCED), next_epoch),
        (close, refresh, tell(Operation.REMOVE, Phase.FORCED))),
    Row("SnapshotAligned", "snapshot_aligned",
        lambda s, _: served(s),
        lambda s, a: replace(s, snapshot_aligned_epoch=a.epoch)),
    Row("Shutdown", "shutdown_surface",
        lambda s, _: served(s),
        put(phase=SHUTDOWN)),
)
# fmt: on

SURFACES = Machine(
    "external_tool_surface",
    handle="ExternalToolSurfaceHandle",
    phases=tuple(GlobalPhase),
    initial=Surfaces(),
    inputs=_INPUTS,
    rows=_ROWS,
    invariants=INVARIANTS,
    host_phase=lambda s: s.host.phase,
)
