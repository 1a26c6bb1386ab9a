"""Retries of calls to a model: which failures are retried, and when."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import json
from msgspec.structs import replace

from rookery.actors.execution.models.failure_kinds import LlmFailure, RetryPolicy
from rookery.actors.turns.transitions import Turn
from rookery.actors.turns.turn_machine import TURN
from rookery.schemas.machines.turn import LlmFailureKind, LlmRetryPlan, LlmRetrySchedule
from tests.machines.oracle import CONSTANTS

Kind = LlmFailureKind
POLICY = RetryPolicy()


def failure(kind: LlmFailureKind = Kind.NETWORK_TIMEOUT, **more: Any) -> LlmFailure:
    return LlmFailure(provider="acme", kind=kind, message="broken", **more)


def plan(of: LlmFailure, index: int = 0, **seen: Any) -> LlmRetryPlan:
    schedule = POLICY.schedule_retry(of, index, **seen)
    assert schedule is not None
    return schedule.plan


def test_the_defaults_are_the_models() -> None:
    told = CONSTANTS["retry"]
    for name in ("max_retries", "initial_delay_ms", "max_delay_ms", "multiplier"):
        assert getattr(POLICY, name) == told[name]
    assert POLICY.call_timeout_ms is told["call_timeout"] is None


def test_delays_double_up_to_the_cap() -> None:
    assert [POLICY.delay_for_attempt(n) for n in (0, 1, 2, 3, 6, 7, 8)] == [
        *(0, 500, 1_000, 2_000, 16_000),
        *(30_000, 30_000),
    ]
    assert POLICY.delay_for_attempt(100_000) == 30_000


def test_jitter_comes_before_the_cap() -> None:
    assert POLICY.delay_for_attempt(1, jitter=0.9) == 450
    assert POLICY.delay_for_attempt(1, jitter=1.1) == 550
    assert POLICY.delay_for_attempt(7, jitter=0.9) == 28_800
    assert POLICY.delay_for_attempt(7, jitter=1.1) == 30_000


@pytest.mark.parametrize(
    ("of", "kind"),
    [
        (failure(Kind.RATE_LIMITED), "rate_limited"),
        (failure(Kind.NETWORK_TIMEOUT), "network_timeout"),
        (failure(Kind.CALL_TIMEOUT), "call_timeout"),
        (failure(Kind.PROVIDER_ERROR, retryable=True), "retryable_provider_error"),
        (failure(Kind.PROVIDER_ERROR), None),
        (failure(Kind.AUTH_ERROR), None),
        (failure(Kind.AUTH_ERROR, retryable=True), None),
        (failure(Kind.CONTEXT_EXCEEDED), None),
        (failure(Kind.INVALID_MODEL), None),
    ],
)
def test_what_another_attempt_may_mend(of: LlmFailure, kind: str | None) -> None:
    schedule = POLICY.schedule_retry(of, 0)
    assert (None if schedule is None else schedule.failure.kind) == kind


def test_attempts_are_counted_from_one_and_end_at_the_limit() -> None:
    assert [plan(failure(), index).attempt for index in range(3)] == [1, 2, 3]
    assert POLICY.schedule_retry(failure(), 3) is None


def test_a_longer_hint_of_the_provider_wins_as_it_is() -> None:
    chosen = plan(failure(Kind.RATE_LIMITED, retry_after_ms=700))
    assert (chosen.computed_delay_ms, chosen.selected_delay_ms) == (500, 700)
    assert (chosen.retry_after_hint_ms, chosen.rate_limit_floor_applied) == (700, False)
    beyond_the_cap = plan(failure(Kind.RATE_LIMITED, retry_after_ms=90_000))
    assert beyond_the_cap.selected_delay_ms == 90_000


@pytest.mark.parametrize("hint_ms", [None, 100, 500])
def test_a_limited_rate_without_a_longer_hint_gets_the_floor(hint_ms: int | None) -> None:
    chosen = plan(failure(Kind.RATE_LIMITED, retry_after_ms=hint_ms))
    assert (chosen.selected_delay_ms, chosen.rate_limit_floor_applied) == (30_000, True)


def test_a_delay_at_the_floor_needs_none() -> None:
    patient = RetryPolicy(initial_delay_ms=30_000)
    schedule = patient.schedule_retry(failure(Kind.RATE_LIMITED), 0)
    assert schedule is not None
    assert schedule.plan.selected_delay_ms == 30_000
    assert not schedule.plan.rate_limit_floor_applied


def test_only_a_limited_rate_has_a_hint_and_a_floor() -> None:
    chosen = plan(failure(Kind.CALL_TIMEOUT, retry_after_ms=700, duration_ms=9))
    assert (chosen.selected_delay_ms, chosen.retry_after_hint_ms) == (500, None)
    assert not chosen.rate_limit_floor_applied


def test_the_budget_that_is_left_cuts_the_delay() -> None:
    cut = plan(failure(Kind.RATE_LIMITED), remaining_budget_ms=400)
    assert (cut.selected_delay_ms, cut.budget_capped) == (400, True)
    assert cut.rate_limit_floor_applied
    enough = plan(failure(), remaining_budget_ms=500)
    assert (enough.selected_delay_ms, enough.budget_capped) == (500, False)
    assert plan(failure(), remaining_budget_ms=0).selected_delay_ms == 0


def test_what_is_absent_is_not_written() -> None:
    short = json.decode(json.encode(POLICY.schedule_retry(failure(), 0)))
    assert short == {
        "failure": {"provider": "acme", "kind": "network_timeout", "message": "broken"},
        "plan": {
            "attempt": 1,
            "max_retries": 3,
            "computed_delay_ms": 500,
            "selected_delay_ms": 500,
            "rate_limit_floor_applied": False,
            "budget_capped": False,
        },
    }
    limited = failure(Kind.RATE_LIMITED, retry_after_ms=700, duration_ms=3)
    schedule = POLICY.schedule_retry(limited, 0)
    body = json.encode(schedule)
    assert b'"retry_after_ms":700' in body
    assert b'"retry_after_hint_ms":700' in body
    assert json.decode(body, type=LlmRetrySchedule) == schedule


@given(
    st.sampled_from(Kind),
    st.integers(0, 4),
    st.none() | st.integers(0, 100_000),
    st.none() | st.integers(0, 100_000),
    st.floats(0.9, 1.1),
)
def test_a_plan_keeps_its_promises(
    kind: LlmFailureKind, index: int, hint_ms: int | None, left_ms: int | None, jitter: float
) -> None:
    of = failure(kind, retry_after_ms=hint_ms, retryable=True)
    schedule = POLICY.schedule_retry(of, index, remaining_budget_ms=left_ms, jitter=jitter)
    if schedule is None:
        assert index >= 3 or of.retryable_as is None
        return
    chosen = schedule.plan
    assert 1 <= chosen.attempt == index + 1 <= chosen.max_retries
    assert left_ms is None or chosen.selected_delay_ms <= left_ms
    due_ms = max(chosen.computed_delay_ms, chosen.retry_after_hint_ms or 0)
    assert chosen.budget_capped or chosen.selected_delay_ms >= due_ms
    assert chosen.computed_delay_ms <= POLICY.max_delay_ms


def test_the_turn_takes_a_plan_as_it_is() -> None:
    schedule = POLICY.schedule_retry(failure(), 0)
    assert schedule is not None
    draft = TURN.candidate(
        "recoverable_failure",
        {
            "failure_kind": schedule.failure.kind,
            "retry_attempt": schedule.plan.attempt,
            "max_retries": schedule.plan.max_retries,
            "selected_delay_ms": schedule.plan.selected_delay_ms,
            "error": schedule.failure.message,
        },
    )
    turn = TURN.evolve(Turn(), replace(draft, row="RecoverableFailure"))
    assert turn.llm_retry_selected_delay_ms == 500
    assert turn.llm_retry_last_failure_kind is schedule.failure.kind
