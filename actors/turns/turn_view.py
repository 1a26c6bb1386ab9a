"""A turn as its handle shows it.

Derived from the machine's state alone. Run and operation ids are shown only if they are UUIDs.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from rookery.actors.turns.transitions import Turn
from rookery.schemas.machines.turn import (
    AsyncOpRef,
    LoopState,
    TurnPhase,
    TurnStateSnapshot,
    WaitPolicy,
)

__all__ = ["loop_state", "turn_snapshot"]

U32_MAX: Final = 2**32 - 1

_LOOP_STATES: Final = {
    TurnPhase.READY: LoopState.CALLING_LLM,
    TurnPhase.APPLYING_PRIMITIVE: LoopState.CALLING_LLM,
    TurnPhase.CALLING_LLM: LoopState.CALLING_LLM,
    TurnPhase.WAITING_FOR_OPS: LoopState.WAITING_FOR_OPS,
    TurnPhase.DRAINING_BOUNDARY: LoopState.DRAINING_EVENTS,
    TurnPhase.EXTRACTING: LoopState.DRAINING_EVENTS,
    TurnPhase.ERROR_RECOVERY: LoopState.ERROR_RECOVERY,
    TurnPhase.CANCELLING: LoopState.CANCELLING,
    TurnPhase.COMPLETED: LoopState.COMPLETED,
    TurnPhase.FAILED: LoopState.COMPLETED,
    TurnPhase.CANCELLED: LoopState.COMPLETED,
}


def loop_state(phase: TurnPhase) -> LoopState:
    """The coarse view of a phase."""
    return _LOOP_STATES[phase]


def turn_snapshot(turn: Turn) -> TurnStateSnapshot:
    """The turn's present state."""
    barrier = turn.barrier_operation_ids
    pending = (
        AsyncOpRef(shown, WaitPolicy.BARRIER if own in barrier else WaitPolicy.DETACHED)
        for own in turn.pending_op_refs
        if (shown := _canonical(own)) is not None
    )
    return TurnStateSnapshot(
        active_run_id=None if turn.phase.is_terminal else _canonical(turn.host.current_run_id),
        loop_state=loop_state(turn.phase),
        turn_phase=turn.phase,
        primitive_kind=turn.primitive_kind,
        admitted_content_shape=turn.admitted_content_shape,
        vision_enabled=turn.vision_enabled,
        image_tool_results_enabled=turn.image_tool_results_enabled,
        tool_calls_pending=turn.tool_calls_pending,
        pending_op_refs=tuple(sorted(set(pending))),
        barrier_operation_ids=tuple(sorted(set(filter(None, map(_canonical, barrier))))),
        has_barrier_ops=turn.has_barrier_ops,
        barrier_satisfied=turn.barrier_satisfied,
        boundary_count=turn.boundary_count,
        cancel_after_boundary=turn.cancel_after_boundary,
        terminal_outcome=turn.terminal_outcome,
        terminal_cause_kind=turn.terminal_cause_kind,
        extraction_attempts=turn.extraction_attempts,
        max_extraction_retries=turn.max_extraction_retries,
        llm_retry_attempt=min(turn.llm_retry_attempt, U32_MAX),
        llm_retry_max_retries=min(turn.llm_retry_max_retries, U32_MAX),
        llm_retry_selected_delay_ms=turn.llm_retry_selected_delay_ms,
    )


def _canonical(text: str | None) -> str | None:
    """The canonical form of a UUID; ``None`` for any other text."""
    try:
        return str(UUID(text or ""))
    except ValueError:
        return None
