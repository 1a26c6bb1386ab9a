"""external_tool_surface: the surfaces of a session and the calls they accept.

Changes are staged at any time and applied at the boundary of a turn. Additions and reloads are jobs
that complete later; removals first drain their calls. Two numbers reject late inputs: a boundary
quotes the staged intent it saw, a completion quotes its job and intent. Executors connect, close
and call. The machine has no clock: the caller decides when to force a removal.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from rookery.actors.kernel.machines import (
    ATTACHED,
    RUNNING,
    Machine,
    MachineInput,
    Transition,
    TransitionEffect,
    set_fields,
)
from rookery.actors.surfaces.state import (
    INVARIANTS,
    Surfaces,
    add_known,
    clear_calls,
    clear_job,
    combine,
    count_call,
    delta,
    delta_failed,
    hide,
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
from rookery.schemas.machines.transition import (
    CloseSurfaceConnection,
    EmitExternalToolDelta,
    RefreshVisibleSurfaceSet,
    RejectSurfaceCall,
    ScheduleSurfaceCompletion,
)

__all__ = ["SURFACES"]

OPERATING, SHUTDOWN = GlobalPhase
ABSENT, ACTIVE, REMOVING, REMOVED = Base
NO_JOB = PendingOp.NONE
SERVED = (ATTACHED, RUNNING)
"""Phases in which an executor runs turns; no session needs to be registered."""


EffectFactory = Callable[[Surfaces, Any], TransitionEffect]


def schedule(operation: Operation) -> EffectFactory:
    return lambda s, a: ScheduleSurfaceCompletion(
        surface_id=a.surface_id,
        operation=operation,
        pending_task_sequence=s.next_pending_task_sequence,
        staged_intent_sequence=a.staged_seq,
        applied_at_turn=a.applied_at_turn,
    )


def emit_delta(operation: Operation, phase: Phase) -> EffectFactory:
    return lambda _, a: EmitExternalToolDelta(
        surface_id=a.surface_id, operation=operation, phase=phase
    )


def emit_failure(s: Surfaces, a: facts.PendingFailed) -> TransitionEffect:
    return EmitExternalToolDelta(
        surface_id=a.surface_id,
        operation=s.last_delta_operation.get(a.surface_id, Operation.NONE),
        phase=Phase.FAILED,
        cause=a.cause_in,
    )


def refresh(s: Surfaces, _: Any) -> TransitionEffect:
    return RefreshVisibleSurfaceSet(snapshot_epoch=s.snapshot_epoch)


def close(_: Surfaces, a: Any) -> TransitionEffect:
    return CloseSurfaceConnection(surface_id=a.surface_id)


def reject(cause: Cause) -> EffectFactory:
    return lambda _, a: RejectSurfaceCall(surface_id=a.surface_id, cause=cause)


# --- when rows hold -----------------------------------------------------------------------------


def is_serving(s: Surfaces) -> bool:
    return s.host.phase in SERVED


def is_changeable(s: Surfaces) -> bool:
    return s.phase is OPERATING and is_serving(s)


def applies_staged(s: Surfaces, a: facts.BoundaryApplied, staged: StagedOp) -> bool:
    """Whether the boundary saw the current intent, and no job is active."""
    return (
        is_changeable(s)
        and s.staged_op.get(a.surface_id) is staged
        and s.staged_intent_sequence.get(a.surface_id) == a.staged_seq
        and s.pending_op.get(a.surface_id, NO_JOB) is NO_JOB
    )


def is_current_job(s: Surfaces, a: facts.PendingSucceeded | facts.PendingFailed) -> bool:
    return (
        is_serving(s)
        and s.pending_task_sequence.get(a.surface_id) == a.task_seq
        and s.pending_lineage_sequence.get(a.surface_id) == a.lineage_seq
    )


def base(s: Surfaces, a: Any) -> Base:
    return s.base_state.get(a.surface_id, ABSENT)


def has_calls(s: Surfaces, a: Any) -> bool:
    return s.inflight_calls.get(a.surface_id, 0) > 0


# --- the machine --------------------------------------------------------------------------------

_COMPLETION = ("surface_id", "task_seq", "lineage_seq")
_INPUTS = {
    "register": MachineInput(facts.Registered, ("surface_id",)),
    "stage_add": MachineInput(facts.AddStaged, ("surface_id", "now_ms")),
    "stage_remove": MachineInput(facts.RemoveStaged, ("surface_id", "now_ms")),
    "stage_reload": MachineInput(facts.ReloadStaged, ("surface_id", "now_ms")),
    "apply_boundary": MachineInput(
        facts.BoundaryApplied, ("surface_id", "now_ms", "staged_seq", "applied_at_turn")
    ),
    "mark_pending_succeeded": MachineInput(facts.PendingSucceeded, _COMPLETION),
    "mark_pending_failed": MachineInput(facts.PendingFailed, (*_COMPLETION, "cause")),
    "call_started": MachineInput(facts.CallStarted, ("surface_id",)),
    "call_finished": MachineInput(facts.CallFinished, ("surface_id",)),
    "finalize_removal_clean": MachineInput(facts.RemovalFinalized, ("surface_id",)),
    "finalize_removal_forced": MachineInput(facts.RemovalForced, ("surface_id",)),
    "snapshot_aligned": MachineInput(facts.SnapshotAligned, ("epoch",)),
    "shutdown_surface": MachineInput(facts.ShutDown),
}

# fmt: off
_ROWS = (
    Transition("Register", "register",
        lambda s, _: is_serving(s),
        combine(add_known)),
    Transition("StageAdd", "stage_add",
        lambda s, _: is_changeable(s),
        combine(add_known, stage(StagedOp.ADD))),
    Transition("StageRemove", "stage_remove",
        lambda s, _: is_changeable(s),
        combine(add_known, stage(StagedOp.REMOVE))),
    Transition("StageReload", "stage_reload",
        lambda s, a: is_changeable(s) and a.surface_id in s.active_surfaces,
        combine(add_known, stage(StagedOp.RELOAD))),
    Transition("ApplyBoundaryAdd", "apply_boundary",
        lambda s, a: applies_staged(s, a, StagedOp.ADD) and base(s, a) is not REMOVING,
        combine(add_known, start_job(PendingOp.ADD), unstage, delta(Operation.ADD, Phase.PENDING),
                next_epoch),
        (schedule(Operation.ADD), emit_delta(Operation.ADD, Phase.PENDING))),
    Transition("ApplyBoundaryReload", "apply_boundary",
        lambda s, a: (applies_staged(s, a, StagedOp.RELOAD) and a.surface_id in s.active_surfaces
                      and base(s, a) is ACTIVE),
        combine(add_known, start_job(PendingOp.RELOAD), unstage,
                delta(Operation.RELOAD, Phase.PENDING), next_epoch),
        (schedule(Operation.RELOAD), emit_delta(Operation.RELOAD, Phase.PENDING))),
    Transition("ApplyBoundaryRemoveDraining", "apply_boundary",
        lambda s, a: applies_staged(s, a, StagedOp.REMOVE) and base(s, a) is ACTIVE,
        combine(add_known, clear_job, unstage, hide(REMOVING), start_draining,
                delta(Operation.REMOVE, Phase.DRAINING), next_epoch),
        (refresh, emit_delta(Operation.REMOVE, Phase.DRAINING))),
    Transition("ApplyBoundaryRemoveNoop", "apply_boundary",
        lambda s, a: applies_staged(s, a, StagedOp.REMOVE) and base(s, a) is not ACTIVE,
        combine(add_known, clear_job, unstage)),
    Transition("MarkPendingSucceededAdd", "mark_pending_succeeded",
        lambda s, a: s.pending_op.get(a.surface_id) is PendingOp.ADD and is_current_job(s, a),
        combine(add_known, clear_job, show, delta(Operation.ADD, Phase.APPLIED), next_epoch),
        (refresh, emit_delta(Operation.ADD, Phase.APPLIED))),
    Transition("MarkPendingSucceededReload", "mark_pending_succeeded",
        lambda s, a: s.pending_op.get(a.surface_id) is PendingOp.RELOAD and is_current_job(s, a),
        combine(add_known, clear_job, show, delta(Operation.RELOAD, Phase.APPLIED), next_epoch),
        (refresh, emit_delta(Operation.RELOAD, Phase.APPLIED))),
    Transition("MarkPendingFailed", "mark_pending_failed",
        is_current_job,
        combine(clear_job, delta_failed),
        (emit_failure,)),
    Transition("CallStartedActive", "call_started",
        lambda s, a: is_serving(s) and base(s, a) is ACTIVE,
        combine(count_call)),
    Transition("CallStartedRejectRemoving", "call_started",
        lambda s, a: is_serving(s) and base(s, a) is REMOVING,
        effects=(reject(Cause.SURFACE_DRAINING),)),
    Transition("CallStartedRejectUnavailable", "call_started",
        lambda s, a: is_serving(s) and base(s, a) not in (ACTIVE, REMOVING),
        effects=(reject(Cause.SURFACE_UNAVAILABLE),)),
    Transition("CallFinished", "call_finished",
        lambda s, a: is_serving(s) and base(s, a) in (ACTIVE, REMOVING) and has_calls(s, a),
        combine(uncount_call)),
    Transition("FinalizeRemovalClean", "finalize_removal_clean",
        lambda s, a: is_serving(s) and base(s, a) is REMOVING and not has_calls(s, a),
        combine(hide(REMOVED), clear_job, stop_draining, delta(Operation.REMOVE, Phase.APPLIED),
                next_epoch),
        (close, refresh, emit_delta(Operation.REMOVE, Phase.APPLIED))),
    Transition("FinalizeRemovalForced", "finalize_removal_forced",
        lambda s, a: is_serving(s) and base(s, a) is REMOVING,
        combine(hide(REMOVED), clear_job, clear_calls, stop_draining,
                delta(Operation.REMOVE, Phase.FORCED), next_epoch),
        (close, refresh, emit_delta(Operation.REMOVE, Phase.FORCED))),
    Transition("SnapshotAligned", "snapshot_aligned",
        lambda s, _: is_serving(s),
        lambda s, a: replace(s, snapshot_aligned_epoch=a.epoch)),
    Transition("Shutdown", "shutdown_surface",
        lambda s, _: is_serving(s),
        set_fields(phase=SHUTDOWN)),
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
