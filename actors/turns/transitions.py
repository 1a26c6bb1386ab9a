"""What the steps of turn_execution make of a turn; when one may be taken is ``machine``'s."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from rookery.actors.kernel.machines.session_host import ATTACHED, RUNNING, SessionHost
from rookery.actors.turns.turn_state import (
    APPLYING,
    CALLING,
    CANCELLED,
    COMPLETED,
    FAILED,
    NOTHING,
    RECOVERING,
    WAITING,
    Turn,
)
from rookery.schemas.facts import turn as facts
from rookery.schemas.machines.turn import (
    ContentShape,
    TurnPhase,
    TurnPrimitiveKind,
    TurnTerminalOutcome,
)

__all__ = [
    "acknowledge",
    "await_retry",
    "bind_run",
    "cancel",
    "cancel_at_boundary",
    "complete",
    "complete_at_boundary",
    "complete_without_extraction",
    "continue_at_boundary",
    "defer_to_callback",
    "extract_again",
    "fail",
    "fail_run",
    "register_ops",
    "satisfy_barrier",
    "start_conversation",
    "start_immediate",
    "to_phase",
]

OUTCOME_COMPLETED: Final = TurnTerminalOutcome.COMPLETED
OUTCOME_FAILED: Final = TurnTerminalOutcome.FAILED
OUTCOME_CANCELLED: Final = TurnTerminalOutcome.CANCELLED


def to_phase(phase: TurnPhase) -> Callable[[Turn, object], Turn]:
    """The step that leads to ``phase`` and changes nothing else."""
    return lambda turn, _: replace(turn, phase=phase)


def bind_run(host: SessionHost, run_id: str) -> SessionHost:
    """The host with the run, if it was not prepared for it; one that did not run before it returns
    to Attached."""
    if host.phase is RUNNING and host.current_run_id == run_id:
        return host
    home = host.pre_run_phase if host.phase is RUNNING else ATTACHED
    return replace(host, phase=RUNNING, current_run_id=run_id, pre_run_phase=home)


def start_conversation(turn: Turn, asked: facts.Started) -> Turn:
    return Turn(
        phase=APPLYING,
        primitive_kind=asked.primitive_kind_in,
        admitted_content_shape=asked.shape,
        vision_enabled=asked.vision,
        image_tool_results_enabled=asked.image_results,
        max_extraction_retries=asked.max_retries,
        host=bind_run(turn.host, asked.run),
    )


def start_immediate(kind: TurnPrimitiveKind, shape: ContentShape) -> Callable[[Turn, Any], Turn]:
    return lambda turn, asked: Turn(
        phase=APPLYING,
        primitive_kind=kind,
        admitted_content_shape=shape,
        host=bind_run(turn.host, asked.run),
    )


def register_ops(turn: Turn, asked: facts.OpsRegistered) -> Turn:
    barrier = frozenset(asked.barrier_ids)
    return replace(
        turn,
        phase=WAITING,
        pending_op_refs=frozenset(asked.op_refs),
        barrier_operation_ids=barrier,
        has_barrier_ops=bool(barrier),
        barrier_satisfied=not barrier,
        tool_calls_pending=0,
    )


def satisfy_barrier(turn: Turn, _: object) -> Turn:
    return replace(
        turn,
        phase=WAITING,
        barrier_satisfied=True,
        pending_op_refs=NOTHING,
        barrier_operation_ids=NOTHING,
        has_barrier_ops=False,
    )


def continue_at_boundary(turn: Turn, _: object) -> Turn:
    return replace(turn, phase=CALLING, boundary_count=turn.boundary_count + 1)


def complete_at_boundary(turn: Turn, _: object) -> Turn:
    return replace(
        turn,
        phase=COMPLETED,
        boundary_count=turn.boundary_count + 1,
        terminal_outcome=OUTCOME_COMPLETED,
    )


def cancel_at_boundary(turn: Turn, _: object) -> Turn:
    """What was requested has happened, so it is requested no more."""
    return replace(
        turn,
        phase=CANCELLED,
        boundary_count=turn.boundary_count + 1,
        cancel_after_boundary=False,
        terminal_outcome=OUTCOME_CANCELLED,
    )


def complete(turn: Turn, _: object) -> Turn:
    return replace(turn, phase=COMPLETED, terminal_outcome=OUTCOME_COMPLETED)


def cancel(turn: Turn, _: object) -> Turn:
    return replace(turn, phase=CANCELLED, terminal_outcome=OUTCOME_CANCELLED)


def extract_again(turn: Turn, _: object) -> Turn:
    return replace(turn, phase=CALLING, extraction_attempts=turn.extraction_attempts + 1)


def complete_without_extraction(turn: Turn, _: object) -> Turn:
    return replace(
        turn,
        phase=COMPLETED,
        extraction_attempts=turn.extraction_attempts + 1,
        terminal_outcome=OUTCOME_COMPLETED,
        terminal_cause_kind=None,
    )


def defer_to_callback(turn: Turn, _: object) -> Turn:
    return replace(
        turn,
        phase=COMPLETED,
        tool_calls_pending=0,
        pending_op_refs=NOTHING,
        barrier_operation_ids=NOTHING,
        has_barrier_ops=False,
        barrier_satisfied=False,
        terminal_outcome=OUTCOME_COMPLETED,
        terminal_cause_kind=None,
    )


def await_retry(turn: Turn, asked: facts.AttemptFailed) -> Turn:
    return replace(
        turn,
        phase=RECOVERING,
        llm_retry_attempt=asked.retry_attempt,
        llm_retry_max_retries=asked.max_retries,
        llm_retry_selected_delay_ms=asked.selected_delay_ms,
        llm_retry_last_failure_kind=asked.failure_kind,
    )


def fail(turn: Turn, asked: facts.FatallyFailed) -> Turn:
    return replace(
        turn,
        phase=FAILED,
        terminal_outcome=OUTCOME_FAILED,
        terminal_cause_kind=asked.cause_kind,
    )


def fail_run(turn: Turn, asked: facts.Failed) -> Turn:
    return replace(
        turn,
        phase=FAILED,
        terminal_outcome=asked.outcome,
        terminal_cause_kind=asked.cause_kind,
        last_runtime_apply_failure_cause=asked.apply_cause,
        last_runtime_apply_failure_message=asked.apply_message,
    )


def acknowledge(turn: Turn, asked: facts.TerminalAcknowledged) -> Turn:
    """Only the outcome is kept, and what could not be applied."""
    return Turn(
        terminal_outcome=asked.outcome,
        last_runtime_apply_failure_cause=turn.last_runtime_apply_failure_cause,
        last_runtime_apply_failure_message=turn.last_runtime_apply_failure_message,
        host=turn.host,
    )
