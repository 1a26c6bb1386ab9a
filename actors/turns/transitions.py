"""``Turn``, the state of turn_execution, its invariants, and how the transitions change it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from rookery.actors.kernel.machines import ATTACHED, RUNNING, SessionHost
from rookery.schemas.facts import turn as facts
from rookery.schemas.machines.turn import (
    ContentShape,
    LlmRetryFailureKind,
    TurnPhase,
    TurnPrimitiveKind,
    TurnTerminalCauseKind,
    TurnTerminalOutcome,
)

__all__ = [
    "APPLYING",
    "CALLING",
    "CANCELLED",
    "CANCELLING",
    "COMPLETED",
    "DRAINING",
    "EXTRACTING",
    "FAILED",
    "NOTHING",
    "READY",
    "RECOVERING",
    "TURN_INVARIANTS",
    "WAITING",
    "Turn",
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

READY, APPLYING, CALLING, WAITING, DRAINING, EXTRACTING = tuple(TurnPhase)[:6]
RECOVERING, CANCELLING, COMPLETED, FAILED, CANCELLED = tuple(TurnPhase)[6:]

NOTHING: Final[frozenset[str]] = frozenset()


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A session's turn, or what the last one left."""

    phase: TurnPhase = READY
    primitive_kind: TurnPrimitiveKind | None = None
    admitted_content_shape: ContentShape | None = None
    vision_enabled: bool = False
    image_tool_results_enabled: bool = False
    tool_calls_pending: int = 0
    pending_op_refs: frozenset[str] = NOTHING
    barrier_operation_ids: frozenset[str] = NOTHING
    """The operations the turn waits for; they need not be among ``pending_op_refs``."""
    has_barrier_ops: bool = False
    barrier_satisfied: bool = False
    """Carried from step to step; only registering operations resets it."""
    boundary_count: int = 0
    cancel_after_boundary: bool = False
    terminal_outcome: TurnTerminalOutcome | None = None
    terminal_cause_kind: TurnTerminalCauseKind | None = None
    last_runtime_apply_failure_cause: str | None = None
    last_runtime_apply_failure_message: str | None = None
    extraction_attempts: int = 0
    max_extraction_retries: int = 0
    llm_retry_attempt: int = 0
    llm_retry_max_retries: int = 0
    llm_retry_selected_delay_ms: int = 0
    llm_retry_last_failure_kind: LlmRetryFailureKind | None = None
    host: SessionHost = SessionHost()


# --- invariants -----------------------------------------------------------------------------------


def the_flag_says_whether_there_are_barrier_ops(turn: Turn) -> bool:
    return turn.has_barrier_ops == bool(turn.barrier_operation_ids)


def a_satisfied_barrier_waits_for_nothing(turn: Turn) -> bool:
    return not (turn.barrier_satisfied and turn.barrier_operation_ids)


def an_ended_turn_has_an_outcome(turn: Turn) -> bool:
    return not turn.phase.is_terminal or turn.terminal_outcome is not None


def a_failed_turn_has_a_known_cause(turn: Turn) -> bool:
    return turn.phase is not FAILED or turn.terminal_cause_kind not in (
        None,
        TurnTerminalCauseKind.UNKNOWN,
    )


TURN_INVARIANTS = (
    the_flag_says_whether_there_are_barrier_ops,
    a_satisfied_barrier_waits_for_nothing,
    an_ended_turn_has_an_outcome,
    a_failed_turn_has_a_known_cause,
)


OUTCOME_COMPLETED: Final = TurnTerminalOutcome.COMPLETED
OUTCOME_FAILED: Final = TurnTerminalOutcome.FAILED
OUTCOME_CANCELLED: Final = TurnTerminalOutcome.CANCELLED


def to_phase(phase: TurnPhase) -> Callable[[Turn, object], Turn]:
    """An ``apply`` that sets the phase and nothing else."""
    return lambda turn, _: replace(turn, phase=phase)


def bind_run(host: SessionHost, run_id: str) -> SessionHost:
    """The host with the run bound, if admission had not prepared it; a host that was not Running
    returns to Attached."""
    if host.phase is RUNNING and host.current_run_id == run_id:
        return host
    home = host.pre_run_phase if host.phase is RUNNING else ATTACHED
    return replace(host, phase=RUNNING, current_run_id=run_id, pre_run_phase=home)


def start_conversation(turn: Turn, fact: facts.Started) -> Turn:
    return Turn(
        phase=APPLYING,
        primitive_kind=fact.primitive_kind_in,
        admitted_content_shape=fact.shape,
        vision_enabled=fact.vision,
        image_tool_results_enabled=fact.image_results,
        max_extraction_retries=fact.max_retries,
        host=bind_run(turn.host, fact.run),
    )


def start_immediate(kind: TurnPrimitiveKind, shape: ContentShape) -> Callable[[Turn, Any], Turn]:
    return lambda turn, fact: Turn(
        phase=APPLYING,
        primitive_kind=kind,
        admitted_content_shape=shape,
        host=bind_run(turn.host, fact.run),
    )


def register_ops(turn: Turn, fact: facts.OpsRegistered) -> Turn:
    barrier = frozenset(fact.barrier_ids)
    return replace(
        turn,
        phase=WAITING,
        pending_op_refs=frozenset(fact.op_refs),
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
    """Cancel; the request is fulfilled and cleared."""
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


def await_retry(turn: Turn, fact: facts.AttemptFailed) -> Turn:
    return replace(
        turn,
        phase=RECOVERING,
        llm_retry_attempt=fact.retry_attempt,
        llm_retry_max_retries=fact.max_retries,
        llm_retry_selected_delay_ms=fact.selected_delay_ms,
        llm_retry_last_failure_kind=fact.failure_kind,
    )


def fail(turn: Turn, fact: facts.FatallyFailed) -> Turn:
    return replace(
        turn,
        phase=FAILED,
        terminal_outcome=OUTCOME_FAILED,
        terminal_cause_kind=fact.cause_kind,
    )


def fail_run(turn: Turn, fact: facts.Failed) -> Turn:
    return replace(
        turn,
        phase=FAILED,
        terminal_outcome=fact.outcome,
        terminal_cause_kind=fact.cause_kind,
        last_runtime_apply_failure_cause=fact.apply_cause,
        last_runtime_apply_failure_message=fact.apply_message,
    )


def acknowledge(turn: Turn, fact: facts.TerminalAcknowledged) -> Turn:
    """Keep only the outcome, and what could not be applied."""
    return Turn(
        terminal_outcome=fact.outcome,
        last_runtime_apply_failure_cause=turn.last_runtime_apply_failure_cause,
        last_runtime_apply_failure_message=turn.last_runtime_apply_failure_message,
        host=turn.host,
    )
