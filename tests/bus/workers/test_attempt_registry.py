"""The worker's record of its calls: pure rules, with time as an argument."""

from __future__ import annotations

import pytest

from rookery.bus.workers import server
from rookery.bus.workers.server import AGE_S, AttemptRegistry
from rookery.schemas.worker_protocol import AttemptState, Job


def job(attempt: int = 1, *, call: str = "c", name: str = "", left_ms: int = 1_000) -> Job:
    return Job(
        surface="shop",
        tool="price",
        body=b"{}",
        left_ms=left_ms,
        call_id=call,
        attempt=attempt,
        id=name or f"{call}/{attempt}",
    )


def test_a_lower_attempt_than_one_seen_is_refused_and_a_higher_one_is_not():
    memory = AttemptRegistry(0.0)
    memory.begin(job(2), 1.0)
    assert "attempt 2 of the call came before" in memory.reason_to_refuse(job(1))
    assert memory.reason_to_refuse(job(2)) == memory.reason_to_refuse(job(3)) == ""
    assert memory.reason_to_refuse(job(1, call="another")) == ""


def test_a_query_cancels_an_attempt_that_has_not_begun():
    memory = AttemptRegistry(0.0)
    assert memory.query_or_cancel("c", 2, 1.0) == (AttemptState.NOT_STARTED, "")
    assert "cancelled" in memory.reason_to_refuse(job(1))
    assert "cancelled" in memory.reason_to_refuse(job(2))
    assert memory.reason_to_refuse(job(3)) == ""
    memory.query_or_cancel("c", 1, 2.0)
    assert "cancelled" in memory.reason_to_refuse(job(2)), "a cancelled attempt stays cancelled"


def test_asking_after_an_attempt_that_has_begun_calls_nothing_off():
    memory = AttemptRegistry(0.0)
    memory.begin(job(1), 1.0)
    assert memory.query_or_cancel("c", 1, 2.0) == (AttemptState.RUNNING, "c/1")
    memory.end(job(1), AttemptState.ENDED, 3.0)
    assert memory.query_or_cancel("c", 1, 4.0) == (AttemptState.ENDED, "c/1")
    assert memory.reason_to_refuse(job(1)) == ""


def test_a_rejected_attempt_counts_as_not_begun():
    memory = AttemptRegistry(0.0)
    memory.begin(job(1), 1.0)
    memory.end(job(1), AttemptState.NOT_STARTED, 1.0)
    assert memory.query_or_cancel("c", 1, 2.0) == (AttemptState.NOT_STARTED, "")
    assert "cancelled" in memory.reason_to_refuse(job(1))


def test_a_job_that_comes_twice_does_not_hide_what_the_first_one_came_to():
    memory = AttemptRegistry(0.0)
    memory.begin(job(1, name="first"), 1.0)
    memory.begin(job(1, name="second"), 1.0)
    memory.end(job(1, name="second"), AttemptState.NOT_STARTED, 1.0)
    assert memory.query_or_cancel("c", 1, 2.0) == (AttemptState.RUNNING, "first")


def test_of_an_attempt_below_the_last_one_nothing_is_known():
    memory = AttemptRegistry(0.0)
    memory.begin(job(1), 1.0)
    memory.begin(job(2), 2.0)
    assert memory.query_or_cancel("c", 1, 3.0) == (AttemptState.UNKNOWN, "")


def test_a_call_without_an_id_is_neither_remembered_nor_refused():
    memory = AttemptRegistry(0.0)
    memory.begin(job(2, call=""), 1.0)
    assert memory.reason_to_refuse(job(1, call="")) == ""


def test_a_worker_reports_how_far_back_it_remembers():
    memory = AttemptRegistry(100.0, calls_max=2)
    assert memory.retention_ms(103.0) == 3_000
    for number in range(3):
        memory.begin(job(call=f"c{number}"), 110.0 + number)
        memory.end(job(call=f"c{number}"), AttemptState.ENDED, 110.0 + number)
    assert memory.retention_ms(115.0) == 5_000, "c0, which ended at 110, was evicted"
    assert memory.query_or_cancel("c0", 1, 115.0)[0] is AttemptState.NOT_STARTED


def test_a_call_that_runs_is_never_let_go():
    memory = AttemptRegistry(0.0, calls_max=2)
    memory.begin(job(call="long"), 1.0)
    for number in range(5):
        memory.begin(job(call=f"c{number}"), 2.0)
        memory.end(job(call=f"c{number}"), AttemptState.ENDED, 2.0)
    assert memory.query_or_cancel("long", 1, 3.0)[0] is AttemptState.RUNNING


@pytest.mark.parametrize(("left_ms", "age_s"), [(1_000, AGE_S), (7_200_000, 7_200.0)])
def test_calls_are_kept_for_as_long_as_the_longest_job_may_take(left_ms: int, age_s: float):
    memory = AttemptRegistry(0.0)
    memory.begin(job(call="longest", left_ms=left_ms), 0.0)
    memory.begin(job(2), 1.0)
    memory.end(job(2), AttemptState.ENDED, 1.0)
    memory.query_or_cancel("off", 1, 1.0)
    memory.begin(job(call="later"), age_s)
    assert memory.reason_to_refuse(job(1))
    assert memory.reason_to_refuse(job(1, call="off"))
    memory.begin(job(call="latest"), age_s + 2.0)
    memory.begin(job(call="latest", attempt=2), age_s + 2.0)
    assert not memory.reason_to_refuse(job(1))
    assert not memory.reason_to_refuse(job(1, call="off"))


def test_what_was_called_off_is_bounded_and_the_newest_stays(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(server, "CANCELLED_MAX", 3)
    memory = AttemptRegistry(0.0)
    for number in range(5):
        memory.query_or_cancel(f"c{number}", 1, 1.0)
    assert [bool(memory.reason_to_refuse(job(call=f"c{n}"))) for n in range(5)] == [False] * 2 + [
        True
    ] * 3
