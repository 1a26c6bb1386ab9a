"""The rules of turn_execution that surprise, one test per rule."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from rookery.actors.kernel.machines.machine import (
    ATTACHED,
    IDLE,
    INITIALIZING,
    RUNNING,
    Edition,
    HostPhase,
    RejectionKind,
    SessionHost,
    TransitionRejected,
)
from rookery.actors.turns.transitions import Turn
from rookery.actors.turns.turn_machine import TURN
from rookery.schemas.errors import Refused
from rookery.schemas.machines.turn import (
    ContentShape,
    TurnPhase,
    TurnPrimitiveKind,
    TurnTerminalCauseKind,
    TurnTerminalOutcome,
)

SEED, HEAD = Edition
RUN = SessionHost(phase=RUNNING, current_run_id="run-1", pre_run_phase=IDLE, session_id="s")
FRESH = Turn(host=RUN)
RETRY = {
    "failure_kind": "rate_limited",
    "retry_attempt": 1,
    "max_retries": 3,
    "selected_delay_ms": 500,
    "error": "slow down",
}
FAILURE = {"cause_kind": "llm_failure", "error": "broken"}


def take(turn: Turn, on: str, *, edition: Edition = HEAD, **params: Any) -> Turn:
    return TURN.evolve(turn, TURN.decide(turn, on, TURN.candidate(on, params), edition=edition))


def told(turn: Turn, on: str, *, edition: Edition = HEAD, **params: Any) -> list[str]:
    fact = TURN.decide(turn, on, TURN.candidate(on, params), edition=edition)
    return [type(effect).__name__ for effect in TURN.effects(TURN.evolve(turn, fact), fact)]


def refused(turn: Turn, on: str, *, edition: Edition = HEAD, **params: Any) -> bool:
    with pytest.raises(TransitionRejected) as rejected:
        take(turn, on, edition=edition, **params)
    return rejected.value.kind is RejectionKind.GUARD_REJECTED


def started(turn: Turn = FRESH, run_id: str = "run-1", **changed: Any) -> Turn:
    asked = {
        "primitive_kind_in": "ConversationTurn",
        "shape": "conversation",
        "vision": False,
        "image_results": False,
        "max_retries": 1,
    }
    return take(turn, "start_conversation_run", run_id=run_id, **{**asked, **changed})


def calling() -> Turn:
    return take(started(), "primitive_applied")


def waiting(*barrier: str) -> Turn:
    turn = take(calling(), "llm_returned_tool_calls", tool_count=2)
    return take(turn, "register_pending_ops", op_refs=["a", "b"], barrier_ids=list(barrier))


def draining() -> Turn:
    return take(calling(), "llm_returned_terminal")


def extracting() -> Turn:
    return take(draining(), "enter_extraction", max_retries=1)


def doomed(turn: Turn) -> Turn:
    return take(turn, "request_cancel_after_boundary")


# --- cancelling at a boundary ---------------------------------------------------------------------


@pytest.mark.parametrize("on", ["boundary_continue", "boundary_complete"])
def test_a_requested_cancel_takes_place_at_the_boundary(on: str) -> None:
    turn = take(doomed(draining()), on)
    assert (turn.phase, turn.boundary_count) == (TurnPhase.CANCELLED, 1)
    assert turn.terminal_outcome is TurnTerminalOutcome.CANCELLED
    assert not turn.cancel_after_boundary
    assert told(doomed(draining()), on) == ["TurnBoundaryApplied", "TurnRunCancelled"]


def test_an_immediate_turn_is_cancelled_at_its_only_boundary() -> None:
    turn = doomed(take(FRESH, "start_immediate_append", run_id="run-1"))
    assert take(turn, "primitive_applied").phase is TurnPhase.CANCELLED


def test_the_seed_only_records_that_a_cancel_was_requested() -> None:
    turn = take(doomed(draining()), "boundary_continue", edition=SEED)
    assert (turn.phase, turn.cancel_after_boundary) == (TurnPhase.CALLING_LLM, True)
    ended = take(turn, "run_completed", run_id="run-1")
    assert not started(ended).cancel_after_boundary


def test_a_requested_cancel_interrupts_no_step() -> None:
    assert take(doomed(draining()), "enter_extraction", max_retries=1).phase is TurnPhase.EXTRACTING
    assert take(doomed(waiting()), "tool_calls_resolved").phase is TurnPhase.DRAINING_BOUNDARY
    assert take(doomed(extracting()), "extraction_start").phase is TurnPhase.CALLING_LLM


def test_requests_to_cancel_may_be_repeated_but_not_their_observation() -> None:
    assert doomed(doomed(calling())) == doomed(calling())
    cancelling = take(take(calling(), "cancel_now"), "cancel_now")
    ended = take(cancelling, "cancellation_observed")
    assert refused(ended, "cancellation_observed")


# --- tools and their barrier ----------------------------------------------------------------------


def test_tools_resolved_before_their_barrier_skip_the_boundary() -> None:
    turn = take(waiting("a"), "tool_calls_resolved")
    assert (turn.phase, turn.boundary_count) == (TurnPhase.CALLING_LLM, 0)
    assert turn.barrier_operation_ids == {"a"}


def test_the_first_tools_without_registered_operations_skip_the_boundary_too() -> None:
    turn = take(calling(), "llm_returned_tool_calls", tool_count=1)
    assert take(turn, "tool_calls_resolved").phase is TurnPhase.CALLING_LLM


def test_operations_without_a_barrier_satisfy_it_at_once() -> None:
    turn = waiting()
    assert (turn.barrier_satisfied, turn.has_barrier_ops) == (True, False)
    assert take(turn, "tool_calls_resolved").phase is TurnPhase.DRAINING_BOUNDARY


def test_registering_operations_replaces_those_before_and_zeroes_the_pending_calls() -> None:
    turn = take(waiting("a"), "register_pending_ops", op_refs=["c"], barrier_ids=["z"])
    assert (turn.pending_op_refs, turn.barrier_operation_ids) == ({"c"}, {"z"})
    assert turn.tool_calls_pending == 0
    from_calling = take(calling(), "register_pending_ops", op_refs=[], barrier_ids=["z"])
    assert from_calling.phase is TurnPhase.WAITING_FOR_OPS


@pytest.mark.parametrize("ids", [[], ["a"], ["a", "b", "c"]])
def test_a_barrier_is_satisfied_by_exactly_its_operations(ids: list[str]) -> None:
    assert refused(waiting("a", "b"), "ops_barrier_satisfied", operation_ids=ids)
    turn = take(waiting("a", "b"), "ops_barrier_satisfied", operation_ids=["b", "a", "b"])
    assert turn.barrier_satisfied
    assert turn.pending_op_refs == frozenset()
    assert refused(turn, "ops_barrier_satisfied", operation_ids=["a", "b"])


def test_an_empty_barrier_is_satisfied_by_nothing() -> None:
    turn = take(calling(), "llm_returned_tool_calls", tool_count=1)
    assert take(turn, "ops_barrier_satisfied", operation_ids=[]).barrier_satisfied


def test_a_satisfied_barrier_stays_satisfied_when_new_tools_are_wanted() -> None:
    turn = take(take(waiting(), "tool_calls_resolved"), "boundary_continue")
    turn = take(turn, "llm_returned_tool_calls", tool_count=1)
    assert turn.barrier_satisfied
    assert take(turn, "tool_calls_resolved").phase is TurnPhase.DRAINING_BOUNDARY


def test_no_tools_wanted_leads_to_the_boundary() -> None:
    turn = take(calling(), "llm_returned_tool_calls", tool_count=0)
    assert turn.phase is TurnPhase.DRAINING_BOUNDARY


# --- extraction -----------------------------------------------------------------------------------


def test_a_failed_extraction_never_fails_the_run() -> None:
    again = take(extracting(), "extraction_validation_failed", error="no")
    assert (again.phase, again.extraction_attempts) == (TurnPhase.CALLING_LLM, 1)
    once_more = take(take(again, "llm_returned_terminal"), "enter_extraction", max_retries=1)
    turn = take(once_more, "extraction_validation_failed", error="no")
    assert (turn.phase, turn.extraction_attempts) == (TurnPhase.COMPLETED, 2)
    assert turn.terminal_outcome is TurnTerminalOutcome.COMPLETED
    assert turn.boundary_count == 0


def test_without_retries_the_first_failed_extraction_completes_the_turn() -> None:
    turn = take(draining(), "enter_extraction", max_retries=0)
    assert take(turn, "extraction_validation_failed", error="no").phase is TurnPhase.COMPLETED


@pytest.mark.parametrize("turn", [calling(), draining(), extracting()], ids=lambda t: t.phase)
def test_extraction_may_fail_where_none_is_running(turn: Turn) -> None:
    assert take(turn, "extraction_failed", error="no").phase is TurnPhase.COMPLETED


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "turn", [calling(), waiting("a"), draining(), extracting()], ids=lambda t: t.phase
)
def test_a_retry_always_resumes_with_the_model(turn: Turn) -> None:
    failed = take(turn, "recoverable_failure", **RETRY)
    assert refused(failed, "retry_requested", retry_attempt=2)
    assert take(failed, "retry_requested", retry_attempt=1).phase is TurnPhase.CALLING_LLM


def test_only_the_seed_lets_a_turn_try_more_often_than_it_may() -> None:
    once_too_often = {**RETRY, "retry_attempt": 4}
    assert refused(calling(), "recoverable_failure", **once_too_often)
    turn = take(calling(), "recoverable_failure", edition=SEED, **once_too_often)
    assert turn.phase is TurnPhase.ERROR_RECOVERY


@pytest.mark.parametrize(
    "on", ["turn_limit_reached", "budget_exhausted", "time_budget_exceeded", "fatal_failure"]
)
def test_a_limit_turns_even_a_cancellation_into_a_failure(on: str) -> None:
    params = FAILURE if on == "fatal_failure" else {}
    for turn in (FRESH, take(calling(), "cancel_now")):
        assert take(turn, on, **params).phase is TurnPhase.FAILED
        assert told(turn, on, **params) == ["TurnRunFailed"]


def test_a_failure_without_a_known_cause_is_refused() -> None:
    unknown = {"cause_kind": "unknown", "error": "?"}
    assert refused(calling(), "fatal_failure", **unknown)
    assert refused(calling(), "run_failed", run_id="run-1", outcome="failed", **unknown)


# --- ends -----------------------------------------------------------------------------------------


def test_an_end_overwrites_whatever_the_turn_is_doing() -> None:
    for turn in (FRESH, started(), waiting("a"), take(calling(), "cancel_now")):
        assert take(turn, "run_completed", run_id="run-1").phase is TurnPhase.COMPLETED
        assert take(turn, "run_cancelled", run_id="run-1").phase is TurnPhase.CANCELLED
        assert refused(turn, "run_completed", run_id="run-2")


def test_completing_a_failed_turn_changes_nothing_but_in_the_seed() -> None:
    failed = take(calling(), "fatal_failure", **FAILURE)
    assert take(failed, "run_completed", run_id="run-1") == failed
    turn = take(failed, "run_completed", edition=SEED, run_id="run-1")
    assert turn.phase is TurnPhase.COMPLETED
    assert turn.terminal_cause_kind is TurnTerminalCauseKind.LLM_FAILURE


def test_a_new_turn_starts_without_acknowledging_the_ended_one() -> None:
    failed = take(
        calling(),
        "run_failed",
        run_id="run-1",
        outcome="failed",
        apply_cause="refused",
        apply_message="why",
        **FAILURE,
    )
    assert started(failed) == started(FRESH)


def test_an_acknowledged_end_keeps_its_outcome_and_what_could_not_be_applied() -> None:
    failed = take(
        calling(),
        "run_failed",
        run_id="run-1",
        outcome="failed",
        apply_cause="refused",
        apply_message="why",
        **FAILURE,
    )
    assert take(failed, "acknowledge_terminal", outcome="budget_exhausted") == Turn(
        terminal_outcome=TurnTerminalOutcome.BUDGET_EXHAUSTED,
        last_runtime_apply_failure_cause="refused",
        last_runtime_apply_failure_message="why",
        host=RUN,
    )
    given_back = replace(failed, host=SessionHost(phase=ATTACHED, session_id="s"))
    assert refused(given_back, "acknowledge_terminal", outcome="failed")


def test_a_turn_waits_for_no_callback() -> None:
    turn = take(waiting("a"), "callback_pending")
    assert (turn.phase, turn.barrier_operation_ids) == (TurnPhase.COMPLETED, frozenset())
    with pytest.raises(TransitionRejected) as rejected:
        take(waiting("a"), "callback_pending", edition=SEED)
    assert rejected.value.kind is RejectionKind.NO_MATCHING_TRANSITION


# --- starts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", HostPhase)
def test_a_start_binds_its_run_to_the_host(phase: HostPhase) -> None:
    turn = Turn(host=SessionHost(phase=phase, current_run_id="prepared", pre_run_phase=IDLE))
    asked = {"run_id": "run-2"}
    if phase not in (INITIALIZING, ATTACHED, RUNNING):
        assert refused(turn, "start_immediate_append", **asked)
        return
    host = take(turn, "start_immediate_append", **asked).host
    home = IDLE if phase is RUNNING else ATTACHED
    assert host == SessionHost(phase=RUNNING, current_run_id="run-2", pre_run_phase=home)


def test_a_live_turn_is_not_started_again() -> None:
    assert refused(calling(), "start_immediate_append", run_id="run-1")


@pytest.mark.parametrize(
    "changed",
    [{"primitive_kind_in": "ImmediateAppend"}, {"shape": "immediate_append"}],
    ids=["kind", "shape"],
)
def test_a_conversation_is_started_with_a_conversation(changed: dict[str, str]) -> None:
    with pytest.raises(TransitionRejected):
        started(**changed)


@pytest.mark.parametrize("edition", Edition)
def test_an_immediate_context_ends_its_turn_in_both_editions(edition: Edition) -> None:
    turn = take(FRESH, "start_immediate_context", run_id="run-1", edition=edition)
    assert turn.primitive_kind is TurnPrimitiveKind.IMMEDIATE_CONTEXT_APPEND
    assert turn.admitted_content_shape is ContentShape.IMMEDIATE_CONTEXT
    assert take(turn, "primitive_applied", edition=edition).phase is TurnPhase.COMPLETED
    assert take(turn, "run_cancelled", run_id="run-1").phase is TurnPhase.CANCELLED


def test_cancelling_without_a_run_needs_a_running_host_that_has_none() -> None:
    turn = Turn(host=SessionHost(phase=RUNNING))
    assert take(turn, "force_cancel_no_run").phase is TurnPhase.CANCELLED
    assert refused(FRESH, "force_cancel_no_run")


# --- parameters -----------------------------------------------------------------------------------


def test_a_word_is_understood_by_its_variant_too() -> None:
    by_word = TURN.candidate("fatal_failure", FAILURE)
    assert TURN.candidate("fatal_failure", {**FAILURE, "cause_kind": "LlmFailure"}) == by_word


@pytest.mark.parametrize(
    ("on", "params"),
    [
        ("start_immediate_append", {}),
        ("run_completed", {"run_id": None}),
        ("llm_returned_tool_calls", {"tool_count": -1}),
        ("retry_requested", {"retry_attempt": 2**64}),
        ("fatal_failure", {"cause_kind": "boredom", "error": ""}),
    ],
)
def test_a_missing_or_impossible_parameter_is_refused(on: str, params: dict[str, Any]) -> None:
    with pytest.raises(Refused) as caught:
        TURN.candidate(on, params)
    assert caught.value.code == "INVALID_ARGUMENT"
