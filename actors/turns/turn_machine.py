"""turn_execution: the states and transitions of a turn, from its start to its end.

The turn asks a driver, executes tools, applies a boundary, and repeats. Beside that it has
transitions for extraction of structured output, retries, cancellation and limits. The effects are
in the words of the state after a transition.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from rookery.actors.kernel.machines import (
    ATTACHED,
    HEAD,
    INITIALIZING,
    RUNNING,
    SEED,
    Machine,
    MachineInput,
    Transition,
    TransitionEffect,
)
from rookery.actors.turns import transitions
from rookery.actors.turns.transitions import (
    APPLYING,
    CALLING,
    CANCELLED,
    CANCELLING,
    COMPLETED,
    DRAINING,
    EXTRACTING,
    FAILED,
    READY,
    RECOVERING,
    TURN_INVARIANTS,
    WAITING,
    Turn,
)
from rookery.schemas.facts import turn as facts
from rookery.schemas.machines.turn import (
    ContentShape,
    TurnPhase,
    TurnPrimitiveKind,
    TurnTerminalCauseKind,
    TurnTerminalOutcome,
)

__all__ = [
    "COMPACT",
    "TURN",
    "TurnBoundaryApplied",
    "TurnCheckCompaction",
    "TurnRunCancelled",
    "TurnRunCompleted",
    "TurnRunFailed",
    "TurnRunStarted",
    "boundary_applied",
    "run_cancelled",
    "run_completed",
    "run_failed",
    "run_started",
]


class TurnRunStarted(TransitionEffect, frozen=True, kw_only=True):
    """The run's driver may begin."""

    run_id: str


class TurnBoundaryApplied(TransitionEffect, frozen=True, kw_only=True):
    """Changes that are possible only between two steps may be made now."""

    run_id: str | None
    boundary_sequence: int


class TurnRunCompleted(TransitionEffect, frozen=True, kw_only=True):
    """The run's turn has completed."""

    run_id: str | None
    outcome: TurnTerminalOutcome


class TurnRunFailed(TransitionEffect, frozen=True, kw_only=True):
    """The run's turn has failed."""

    run_id: str | None
    terminal_cause_kind: TurnTerminalCauseKind
    error: str


class TurnRunCancelled(TransitionEffect, frozen=True, kw_only=True):
    """The run's turn has stopped because it was cancelled."""

    run_id: str | None
    reason: str


class TurnCheckCompaction(TransitionEffect, frozen=True, kw_only=True):
    """A good moment to compact the conversation."""


COMPACT = TurnCheckCompaction()


def run_started(_: Turn, fact: Any) -> TurnRunStarted:
    return TurnRunStarted(run_id=fact.run)


def boundary_applied(turn: Turn, _: object) -> TurnBoundaryApplied:
    return TurnBoundaryApplied(
        run_id=turn.host.current_run_id, boundary_sequence=turn.boundary_count
    )


def run_completed(turn: Turn, _: object) -> TurnRunCompleted:
    return TurnRunCompleted(run_id=turn.host.current_run_id, outcome=TurnTerminalOutcome.COMPLETED)


def run_cancelled(turn: Turn, _: object) -> TurnRunCancelled:
    return TurnRunCancelled(run_id=turn.host.current_run_id, reason="Observed")


def run_failed(turn: Turn, fact: facts.FatallyFailed) -> TurnRunFailed:
    return TurnRunFailed(
        run_id=turn.host.current_run_id, terminal_cause_kind=fact.cause_kind, error=fact.error
    )


# An enum member's lookup costs a third of a step.
_, CONVERSATION, APPEND, CONTEXT_APPEND = TurnPrimitiveKind
CONVERSATIONAL: Final = tuple(ContentShape)[:4]
UNKNOWN: Final = TurnTerminalCauseKind.UNKNOWN
STARTED: Final = (APPLYING, CALLING, WAITING, DRAINING, EXTRACTING, RECOVERING, CANCELLING)
LIVE: Final = (READY, *STARTED)
TERMINAL: Final = (COMPLETED, FAILED, CANCELLED)
RECOVERABLE: Final = (CALLING, WAITING, DRAINING, EXTRACTING)

# --- when rows hold -------------------------------------------------------------------------------


def may_start(turn: Turn) -> bool:
    """A guard: a new turn replaces an ended one, acknowledged or not."""
    return turn.host.phase in (RUNNING, ATTACHED, INITIALIZING) and (
        turn.phase is READY or turn.phase in TERMINAL
    )


def is_current(turn: Turn, fact: Any) -> bool:
    """A guard: the ended run is the host's current one, in whatever phase its turn is."""
    return turn.host.phase is RUNNING and turn.host.current_run_id == fact.run


def is_conversation(fact: facts.Started) -> bool:
    return fact.primitive_kind_in is CONVERSATION and fact.shape in CONVERSATIONAL


def limit(
    name: str, on: str, outcome: TurnTerminalOutcome, cause: TurnTerminalCauseKind
) -> Transition:
    """The transition of an exceeded limit."""
    return Transition(
        name,
        on,
        lambda turn, _: turn.phase in LIVE and turn.host.phase is RUNNING,
        lambda turn, _: replace(
            turn, phase=FAILED, terminal_outcome=outcome, terminal_cause_kind=cause
        ),
        (
            lambda turn, _: TurnRunFailed(
                run_id=turn.host.current_run_id, terminal_cause_kind=cause, error=cause.variant
            ),
        ),
    )


# --- the machine ----------------------------------------------------------------------------------

_RETRY = ("failure_kind", "retry_attempt", "max_retries", "selected_delay_ms", "error")
_INPUTS = {
    "start_conversation_run": MachineInput(
        facts.Started,
        ("run_id", "primitive_kind_in", "shape", "vision", "image_results", "max_retries"),
    ),
    "start_immediate_append": MachineInput(facts.ImmediateAppendStarted, ("run_id",)),
    "start_immediate_context": MachineInput(facts.ImmediateContextStarted, ("run_id",)),
    "primitive_applied": MachineInput(facts.PrimitiveApplied),
    "llm_returned_tool_calls": MachineInput(facts.ToolCallsReturned, ("tool_count",)),
    "llm_returned_terminal": MachineInput(facts.TerminalReturned),
    "register_pending_ops": MachineInput(facts.OpsRegistered, ("op_refs", "barrier_ids")),
    "tool_calls_resolved": MachineInput(facts.ToolCallsResolved),
    "ops_barrier_satisfied": MachineInput(facts.OpsBarrierSatisfied, ("operation_ids",)),
    "boundary_continue": MachineInput(facts.BoundaryApplied),
    "boundary_complete": MachineInput(facts.BoundaryCompleted),
    "enter_extraction": MachineInput(facts.ExtractionEntered, ("max_retries",)),
    "extraction_start": MachineInput(facts.ExtractionStarted),
    "extraction_validation_passed": MachineInput(facts.ExtractionValidationPassed),
    "extraction_validation_failed": MachineInput(facts.ExtractionValidationFailed, ("error",)),
    "extraction_failed": MachineInput(facts.ExtractionFailed, ("error",)),
    "recoverable_failure": MachineInput(facts.AttemptFailed, _RETRY),
    "fatal_failure": MachineInput(facts.FatallyFailed, ("cause_kind", "error")),
    "retry_requested": MachineInput(facts.RetryRequested, ("retry_attempt",)),
    "cancel_now": MachineInput(facts.CancelRequested),
    "request_cancel_after_boundary": MachineInput(facts.BoundaryCancelRequested),
    "cancellation_observed": MachineInput(facts.CancellationObserved),
    "acknowledge_terminal": MachineInput(facts.TerminalAcknowledged, ("outcome",)),
    "turn_limit_reached": MachineInput(facts.TurnLimitReached),
    "budget_exhausted": MachineInput(facts.BudgetExhausted),
    "time_budget_exceeded": MachineInput(facts.TimeBudgetExceeded),
    "force_cancel_no_run": MachineInput(facts.CancelledWithoutRun),
    "run_completed": MachineInput(facts.Completed, ("run_id",)),
    "run_failed": MachineInput(
        facts.Failed, ("run_id", "apply_cause", "apply_message", "outcome", "cause_kind", "error")
    ),
    "run_cancelled": MachineInput(facts.Cancelled, ("run_id",)),
    "callback_pending": MachineInput(facts.CallbackPending),
}

# fmt: off
_TRANSITIONS = (
    Transition("StartConversationRun", "start_conversation_run",
        lambda t, a: may_start(t) and is_conversation(a),
        transitions.start_conversation,
        (run_started,)),
    Transition("StartImmediateAppend", "start_immediate_append",
        lambda t, _: may_start(t),
        transitions.start_immediate(APPEND, ContentShape.IMMEDIATE_APPEND),
        (run_started,)),
    Transition("StartImmediateContext", "start_immediate_context",
        lambda t, _: may_start(t),
        transitions.start_immediate(CONTEXT_APPEND, ContentShape.IMMEDIATE_CONTEXT),
        (run_started,)),
    Transition("PrimitiveAppliedConversation", "primitive_applied",
        lambda t, _: t.phase is APPLYING and t.host.phase is RUNNING
        and t.primitive_kind is CONVERSATION,
        transitions.to_phase(CALLING),
        (COMPACT,)),
    Transition("PrimitiveAppliedImmediate", "primitive_applied",
        lambda t, _: t.phase is APPLYING and t.host.phase is RUNNING
        and t.primitive_kind in (APPEND, CONTEXT_APPEND),
        transitions.complete_at_boundary,
        (boundary_applied, run_completed, COMPACT), SEED),
    Transition("PrimitiveAppliedImmediateCompleted", "primitive_applied",
        lambda t, _: t.phase is APPLYING and t.host.phase is RUNNING
        and t.primitive_kind in (APPEND, CONTEXT_APPEND) and not t.cancel_after_boundary,
        transitions.complete_at_boundary,
        (boundary_applied, run_completed), HEAD),
    Transition("PrimitiveAppliedImmediateCancelled", "primitive_applied",
        lambda t, _: t.phase is APPLYING and t.host.phase is RUNNING
        and t.primitive_kind in (APPEND, CONTEXT_APPEND) and t.cancel_after_boundary,
        transitions.cancel_at_boundary,
        (boundary_applied, run_cancelled), HEAD),
    Transition("LlmReturnedToolCallsPositive", "llm_returned_tool_calls",
        lambda t, a: t.phase is CALLING and t.host.phase is RUNNING and a.tool_count > 0,
        lambda t, a: replace(t, phase=WAITING, tool_calls_pending=a.tool_count)),
    Transition("LlmReturnedToolCallsZero", "llm_returned_tool_calls",
        lambda t, a: t.phase is CALLING and t.host.phase is RUNNING and a.tool_count == 0,
        lambda t, _: replace(t, phase=DRAINING, tool_calls_pending=0)),
    Transition("LlmReturnedTerminal", "llm_returned_terminal",
        lambda t, _: t.phase is CALLING and t.host.phase is RUNNING,
        transitions.to_phase(DRAINING)),
    Transition("RegisterPendingOps", "register_pending_ops",
        lambda t, _: t.phase in (CALLING, WAITING) and t.host.phase is RUNNING,
        transitions.register_ops),
    Transition("ToolCallsResolvedToCalling", "tool_calls_resolved",
        lambda t, _: t.phase is WAITING and t.host.phase is RUNNING and not t.barrier_satisfied,
        transitions.to_phase(CALLING)),
    Transition("ToolCallsResolvedToBoundary", "tool_calls_resolved",
        lambda t, _: t.phase is WAITING and t.host.phase is RUNNING and t.barrier_satisfied,
        transitions.to_phase(DRAINING)),
    Transition("OpsBarrierSatisfied", "ops_barrier_satisfied",
        lambda t, a: t.phase is WAITING and t.host.phase is RUNNING
        and set(a.operation_ids) == t.barrier_operation_ids,
        transitions.satisfy_barrier),
    Transition("BoundaryContinue", "boundary_continue",
        lambda t, _: t.phase is DRAINING and t.host.phase is RUNNING,
        transitions.continue_at_boundary,
        (boundary_applied, COMPACT), SEED),
    Transition("BoundaryContinueToCalling", "boundary_continue",
        lambda t, _: t.phase is DRAINING and t.host.phase is RUNNING
        and not t.cancel_after_boundary,
        transitions.continue_at_boundary,
        (boundary_applied, COMPACT), HEAD),
    Transition("BoundaryContinueToCancelled", "boundary_continue",
        lambda t, _: t.phase is DRAINING and t.host.phase is RUNNING and t.cancel_after_boundary,
        transitions.cancel_at_boundary,
        (boundary_applied, run_cancelled), HEAD),
    Transition("BoundaryComplete", "boundary_complete",
        lambda t, _: t.phase is DRAINING and t.host.phase is RUNNING,
        transitions.complete_at_boundary,
        (boundary_applied, run_completed, COMPACT), SEED),
    Transition("BoundaryCompleteCompleted", "boundary_complete",
        lambda t, _: t.phase is DRAINING and t.host.phase is RUNNING
        and not t.cancel_after_boundary,
        transitions.complete_at_boundary,
        (boundary_applied, run_completed), HEAD),
    Transition("BoundaryCompleteCancelled", "boundary_complete",
        lambda t, _: t.phase is DRAINING and t.host.phase is RUNNING and t.cancel_after_boundary,
        transitions.cancel_at_boundary,
        (boundary_applied, run_cancelled), HEAD),
    Transition("EnterExtraction", "enter_extraction",
        lambda t, _: t.phase is DRAINING and t.host.phase is RUNNING,
        lambda t, a: replace(t, phase=EXTRACTING, max_extraction_retries=a.max_retries)),
    Transition("ExtractionStart", "extraction_start",
        lambda t, _: t.phase is EXTRACTING and t.host.phase is RUNNING,
        transitions.to_phase(CALLING)),
    Transition("ExtractionValidationPassed", "extraction_validation_passed",
        lambda t, _: t.phase is EXTRACTING and t.host.phase is RUNNING,
        transitions.complete,
        (run_completed, COMPACT)),
    Transition("ExtractionValidationFailedRetry", "extraction_validation_failed",
        lambda t, _: t.phase is EXTRACTING and t.host.phase is RUNNING
        and t.extraction_attempts < t.max_extraction_retries,
        transitions.extract_again,
        (COMPACT,)),
    Transition("ExtractionValidationFailedExhausted", "extraction_validation_failed",
        lambda t, _: t.phase is EXTRACTING and t.host.phase is RUNNING
        and t.extraction_attempts >= t.max_extraction_retries,
        transitions.complete_without_extraction,
        (run_completed,)),
    Transition("ExtractionFailedTerminal", "extraction_failed",
        lambda t, _: t.phase in (EXTRACTING, CALLING, DRAINING) and t.host.phase is RUNNING,
        transitions.complete_without_extraction,
        (run_completed,)),
    Transition("RecoverableFailure", "recoverable_failure",
        lambda t, a: t.phase in RECOVERABLE and t.host.phase is RUNNING and a.retry_attempt > 0,
        transitions.await_retry, edition=SEED),
    # The kind's type ensures that it is recoverable.
    Transition("RecoverableFailureGuarded", "recoverable_failure",
        lambda t, a: t.phase in RECOVERABLE and t.host.phase is RUNNING
        and 0 < a.retry_attempt <= a.max_retries,
        transitions.await_retry, edition=HEAD),
    Transition("FatalFailure", "fatal_failure",
        lambda t, a: t.phase in LIVE and t.host.phase is RUNNING and a.cause_kind is not UNKNOWN,
        transitions.fail,
        (run_failed,)),
    Transition("RetryRequested", "retry_requested",
        lambda t, a: t.phase is RECOVERING and t.host.phase is RUNNING
        and a.retry_attempt == t.llm_retry_attempt,
        transitions.to_phase(CALLING),
        (COMPACT,)),
    Transition("CancelNow", "cancel_now",
        lambda t, _: t.phase in STARTED and t.host.phase is RUNNING,
        transitions.to_phase(CANCELLING)),
    Transition("RequestCancelAfterBoundary", "request_cancel_after_boundary",
        lambda t, _: t.phase in STARTED and t.host.phase is RUNNING,
        lambda t, _: replace(t, cancel_after_boundary=True)),
    Transition("CancellationObserved", "cancellation_observed",
        lambda t, _: t.phase is CANCELLING and t.host.phase is RUNNING,
        transitions.cancel,
        (run_cancelled,)),
    Transition("AcknowledgeTerminal", "acknowledge_terminal",
        lambda t, _: t.phase in TERMINAL and t.host.phase is RUNNING,
        transitions.acknowledge),
    limit("TurnLimitReached", "turn_limit_reached",
          TurnTerminalOutcome.FAILED, TurnTerminalCauseKind.TURN_LIMIT_REACHED),
    limit("BudgetExhausted", "budget_exhausted",
          TurnTerminalOutcome.BUDGET_EXHAUSTED, TurnTerminalCauseKind.BUDGET_EXHAUSTED),
    limit("TimeBudgetExceeded", "time_budget_exceeded",
          TurnTerminalOutcome.TIME_BUDGET_EXCEEDED, TurnTerminalCauseKind.TIME_BUDGET_EXCEEDED),
    Transition("ForceCancelNoRun", "force_cancel_no_run",
        lambda t, _: t.phase is READY and t.host.phase is RUNNING and t.host.current_run_id is None,
        transitions.cancel),
    # Before RunCompleted: HEAD preserves the outcome of an ended turn.
    Transition("RunCompletedKeepsTerminal", "run_completed",
        lambda t, a: t.phase in TERMINAL and is_current(t, a), edition=HEAD),
    Transition("RunCompleted", "run_completed",
        is_current,
        transitions.complete),
    Transition("RunFailed", "run_failed",
        lambda t, a: is_current(t, a) and a.cause_kind is not UNKNOWN,
        transitions.fail_run),
    Transition("RunCancelled", "run_cancelled",
        is_current,
        transitions.cancel),
    Transition("CallbackPending", "callback_pending",
        lambda t, _: t.phase is WAITING and t.host.phase is RUNNING,
        transitions.defer_to_callback,
        (run_completed,), HEAD),
)
# fmt: on

TURN = Machine(
    "turn_execution",
    handle="TurnStateHandle",
    phases=tuple(TurnPhase),
    initial=Turn(),
    inputs=_INPUTS,
    rows=_TRANSITIONS,
    invariants=TURN_INVARIANTS,
    host_phase=lambda turn: turn.host.phase,
)
