"""A turn from outside: its snapshot, the names of its failures, the class of its end."""

from __future__ import annotations

import itertools

import pytest
from msgspec import json
from msgspec.structs import fields, replace

from rookery.actors.execution.models.failure_kinds import (
    BudgetDimension,
    TerminalClass,
    cause_of_budget,
    cause_of_class,
    class_of_cause,
    classify_terminal,
    failure_of_cause,
    failure_of_class,
)
from rookery.actors.kernel.machines.machine import IDLE, RUNNING, SessionHost
from rookery.actors.turns.external_driver import loop_state, turn_snapshot
from rookery.actors.turns.transitions import Turn
from rookery.schemas.machines.turn import (
    AgentErrorClass,
    AsyncOpRef,
    ContentShape,
    LoopState,
    TurnFailureReason,
    TurnPhase,
    TurnStateSnapshot,
    TurnTerminalCauseKind,
    TurnTerminalOutcome,
    WaitPolicy,
)
from tests.machines.oracle import ENUMS

Cause, Error, Outcome = TurnTerminalCauseKind, AgentErrorClass, TurnTerminalOutcome
RUN, OP_1, OP_2 = (f"01890000-0000-7000-8000-00000000000{n}" for n in (1, 2, 3))
RUNNING_HOST = SessionHost(phase=RUNNING, current_run_id=RUN, pre_run_phase=IDLE, session_id="s")


# --- snapshots ------------------------------------------------------------------------------------


def test_a_fresh_turn_shows_the_defaults() -> None:
    assert turn_snapshot(Turn()) == TurnStateSnapshot()


def test_a_snapshot_shows_every_variable_of_the_same_name() -> None:
    turn = Turn(
        phase=TurnPhase.WAITING_FOR_OPS,
        admitted_content_shape=ContentShape.CONVERSATION_AND_CONTEXT,
        vision_enabled=True,
        image_tool_results_enabled=True,
        tool_calls_pending=2,
        has_barrier_ops=True,
        barrier_satisfied=True,
        boundary_count=3,
        cancel_after_boundary=True,
        terminal_outcome=Outcome.FAILED,
        terminal_cause_kind=Cause.HOOK_DENIED,
        extraction_attempts=4,
        max_extraction_retries=5,
        llm_retry_attempt=6,
        llm_retry_max_retries=7,
        llm_retry_selected_delay_ms=8,
        host=RUNNING_HOST,
    )
    shown = turn_snapshot(turn)
    own = {"active_run_id", "loop_state", "turn_phase", "pending_op_refs", "barrier_operation_ids"}
    for field in fields(TurnStateSnapshot):
        if field.name not in own:
            assert getattr(shown, field.name) == getattr(turn, field.name)
    assert (shown.active_run_id, shown.turn_phase) == (RUN, turn.phase)


@pytest.mark.parametrize("phase", TurnPhase)
def test_a_turn_that_has_ended_works_for_no_run(phase: TurnPhase) -> None:
    shown = turn_snapshot(Turn(phase=phase, host=RUNNING_HOST))
    assert shown.active_run_id == (None if phase.is_terminal else RUN)
    assert shown.loop_state.is_terminal == phase.is_terminal


def test_the_loop_state_follows_the_phase() -> None:
    assert {phase.value: loop_state(phase).variant for phase in TurnPhase} == {
        "Ready": "CallingLlm",
        "ApplyingPrimitive": "CallingLlm",
        "CallingLlm": "CallingLlm",
        "WaitingForOps": "WaitingForOps",
        "DrainingBoundary": "DrainingEvents",
        "Extracting": "DrainingEvents",
        "ErrorRecovery": "ErrorRecovery",
        "Cancelling": "Cancelling",
        "Completed": "Completed",
        "Failed": "Completed",
        "Cancelled": "Completed",
    }


def test_operations_are_shown_in_order_with_the_policy_the_barrier_gives_them() -> None:
    turn = Turn(
        pending_op_refs=frozenset((OP_2.upper(), OP_1, "not-a-uuid")),
        barrier_operation_ids=frozenset((OP_1, "nor-this")),
    )
    shown = turn_snapshot(turn)
    assert shown.pending_op_refs == (
        AsyncOpRef(OP_1, WaitPolicy.BARRIER),
        AsyncOpRef(OP_2, WaitPolicy.DETACHED),
    )
    assert shown.barrier_operation_ids == (OP_1,)


def test_a_run_that_is_no_uuid_is_not_shown() -> None:
    host = replace(RUNNING_HOST, current_run_id="run-1")
    assert turn_snapshot(Turn(phase=TurnPhase.CALLING_LLM, host=host)).active_run_id is None


def test_retry_counters_are_shown_as_far_as_32_bits_go() -> None:
    turn = Turn(
        llm_retry_attempt=2**40, llm_retry_max_retries=2**40, llm_retry_selected_delay_ms=2**40
    )
    shown = turn_snapshot(turn)
    assert (shown.llm_retry_attempt, shown.llm_retry_max_retries) == (2**32 - 1, 2**32 - 1)
    assert shown.llm_retry_selected_delay_ms == 2**40


def test_a_snapshot_reads_the_same_after_the_wire() -> None:
    shown = turn_snapshot(Turn(pending_op_refs=frozenset((OP_1,)), host=RUNNING_HOST))
    assert json.decode(json.encode(shown), type=TurnStateSnapshot) == shown


# --- failures -------------------------------------------------------------------------------------


def test_a_class_of_error_leads_to_a_cause() -> None:
    known = {
        Error.HOOK: Cause.HOOK_FAILURE,
        Error.LLM: Cause.LLM_FAILURE,
        Error.TOOL: Cause.TOOL_FAILURE,
        Error.STRUCTURED_OUTPUT: Cause.STRUCTURED_OUTPUT_VALIDATION_FAILED,
        Error.INVALID_OUTPUT_SCHEMA: Cause.STRUCTURED_OUTPUT_VALIDATION_FAILED,
        Error.BUDGET: Cause.BUDGET_EXHAUSTED,
        Error.MAX_TURNS: Cause.TURN_LIMIT_REACHED,
    }
    for error_class in Error:
        assert cause_of_class(error_class) is known.get(error_class, Cause.FATAL_FAILURE)


def test_a_cause_leads_to_a_class_of_error() -> None:
    assert {cause.variant: class_of_cause(cause).variant for cause in Cause} == {
        "Unknown": "Internal",
        "HookDenied": "Hook",
        "HookFailure": "Hook",
        "LlmFailure": "Llm",
        "ToolFailure": "Tool",
        "StructuredOutputValidationFailed": "StructuredOutput",
        "BudgetExhausted": "Budget",
        "TimeBudgetExceeded": "Budget",
        "RetryExhausted": "Llm",
        "TurnLimitReached": "MaxTurns",
        "RuntimeApplyFailure": "Internal",
        "FatalFailure": "Terminal",
    }


def test_a_message_never_classifies() -> None:
    by_class = failure_of_class(Error.LLM, "the tool budget hook failed")
    assert (by_class.error_class, by_class.cause_kind) == (Error.LLM, Cause.LLM_FAILURE)
    by_cause = failure_of_cause(Cause.RETRY_EXHAUSTED, "unknown")
    assert (by_cause.error_class, by_cause.cause_kind) == (Error.LLM, Cause.RETRY_EXHAUSTED)


def test_a_reason_says_class_on_the_wire() -> None:
    reason = failure_of_class(Error.MAX_TURNS, "enough")
    body = json.encode(reason)
    assert body == b'{"class":"max_turns","cause_kind":"turn_limit_reached","message":"enough"}'
    assert json.decode(body, type=TurnFailureReason) == reason


def test_running_out_of_time_is_not_running_out_of_anything_else() -> None:
    assert [cause_of_budget(dimension) for dimension in BudgetDimension] == [
        Cause.BUDGET_EXHAUSTED,
        Cause.TIME_BUDGET_EXCEEDED,
        Cause.BUDGET_EXHAUSTED,
    ]


def test_what_an_end_counts_as() -> None:
    special = {
        (Outcome.COMPLETED, None): TerminalClass.SUCCESS,
        (Outcome.COMPLETED, Cause.UNKNOWN): TerminalClass.SUCCESS,
        (Outcome.CANCELLED, None): TerminalClass.CANCELLED,
        (Outcome.CANCELLED, Cause.UNKNOWN): TerminalClass.CANCELLED,
        (Outcome.BUDGET_EXHAUSTED, Cause.BUDGET_EXHAUSTED): TerminalClass.SUCCESS,
    }
    for outcome, cause in itertools.product((None, *Outcome), (None, *Cause)):
        missing = outcome in (None, Outcome.NONE)
        other = TerminalClass.MISSING if missing else TerminalClass.HARD_FAILURE
        assert classify_terminal(outcome, cause) is special.get((outcome, cause), other)


# --- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [LoopState, TurnPhase, ContentShape, Outcome, Cause, Error, WaitPolicy],
    ids=lambda kind: kind.__name__,
)
def test_the_words_are_the_models(kind: type[LoopState | TurnPhase]) -> None:
    ours = {getattr(member, "variant", member.value): member.value for member in kind}
    assert ours == ENUMS[kind.__name__]


def test_a_shape_says_what_was_staged() -> None:
    staged = itertools.product((True, False), repeat=2)
    shapes = [ContentShape.of_staged(conversation=talk, context=more) for talk, more in staged]
    assert list(map(str, shapes)) == ["conversation+context", "conversation", "context", "empty"]
