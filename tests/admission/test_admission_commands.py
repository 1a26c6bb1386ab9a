"""The rules of admission's commands, one test per rule."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from rookery.actors.admission.commands import AdmissionQuotas, accept, handle_input
from rookery.actors.admission.effects import effects
from rookery.actors.admission.state import ObservedTurn
from rookery.actors.kernel.machines.machine import HostPhase
from rookery.schemas.commands import HandleInput
from rookery.schemas.envelope import Command, Mode
from rookery.schemas.errors import Refused
from rookery.schemas.facts import session as facts
from rookery.schemas.run import Language, RunRequest
from tests.admission.session_harness import KEY, T0, WIDE, SessionHarness, fresh

QUEUE, PASSIVE, STEER, INTERRUPT = Mode
OPENING = ["Initialized", "Registered", "ExecutorEnsured"]


def refusal(code: str) -> Any:
    return pytest.raises(Refused, match=rf"^({code}|DSL transition rejected)")


def given(*modes: Mode) -> SessionHarness:
    """A session with an active run, and these inputs sent after it."""
    session = SessionHarness()
    session.run()
    for mode in modes:
        session.run(mode)
    return session


# --- opening and taking in ------------------------------------------------------------------------


def test_the_first_run_opens_the_session_and_is_prepared_in_one_commit() -> None:
    session = SessionHarness()
    told = session.run(code="1+1")
    assert session.kinds(told) == [*OPENING, "InputAccepted", "RunPrepared"]
    assert session.state.host.phase is HostPhase.RUNNING
    assert session.state.host.pre_run_phase is HostPhase.ATTACHED
    assert {fact.generation for fact in told} == {1}
    assert told[3].request == RunRequest(session_id=KEY, code="1+1")
    assert told[3].run == told[4].run == session.state.host.current_run_id


def test_a_run_that_must_wait_has_its_run_id_already() -> None:
    session = given()
    (accepted,) = session.run(reply_to="inbox.1")
    assert accepted.row == "AcceptWithCompletionRunningQueuedWakeIfIdle"
    receipt = session.state.receipt(session.of(session.commands[1]))
    assert (receipt.run_id, receipt.input_id) == (accepted.run, accepted.input_id)
    assert (receipt.session_id, receipt.state) == (KEY, "queued")


def test_ids_come_from_the_command_and_nothing_else() -> None:
    command = Command(verb="run", key=KEY, id="mine", body=RunRequest())
    ids = [
        [str(fact.run) for fact in accept(fresh(), command, now_ms=at_ms, quotas=WIDE)][-1]
        for at_ms in (T0, T0, T0 + 1)
    ]
    assert ids[0] == ids[1] != ids[2]
    assert ids[0][14:] == ids[2][14:], "only the time differs"


def test_a_request_for_another_session_is_refused() -> None:
    session = SessionHarness()
    with refusal("INVALID_ARGUMENT"):
        session.run(session_id="another")
    session.run(session_id=KEY)
    assert session.state.host.session_id == KEY


def test_a_request_too_large_for_a_fact_is_named_by_its_blob() -> None:
    command = Command(verb="run", key=KEY, id="large", body=RunRequest(), blob="digest")
    session = SessionHarness()
    accepted = session.send(command, quotas=WIDE)[3]
    assert accepted.request_blob == "digest"
    assert isinstance(accepted.request, RunRequest)
    assert (accepted.request.code, accepted.request.inputs) == ("", {})


def test_the_record_of_a_session_follows_its_inputs() -> None:
    session = given()
    session.now_ms += 5
    session.run(language=Language.TYPESCRIPT)
    view = session.state.view()
    assert (view.meta.id, view.meta.created_at, view.meta.last_used_at) == (KEY, T0, T0 + 5)
    assert (view.meta.language, view.phase, view.generation) == ("typescript", "Running", 1)
    assert view.current_run_id == session.of(session.commands[0]).run_id
    assert [receipt.state for receipt in view.queue] == ["queued"]


@pytest.mark.parametrize(
    ("quotas", "says"),
    [
        (
            AdmissionQuotas(queued_max=1, in_flight_max=9, in_flight=2),
            "1 inputs wait .* the limit is 1",
        ),
        (
            AdmissionQuotas(queued_max=9, in_flight_max=7, in_flight=7),
            "7 runs in flight, the limit is 7",
        ),
    ],
)
def test_a_quota_that_is_used_up_is_named_with_its_value(
    quotas: AdmissionQuotas, says: str
) -> None:
    session = given(QUEUE)
    with pytest.raises(Refused, match=says) as refused:
        session.run(quotas=quotas)
    assert refused.value.code == "QUOTA_EXCEEDED"
    assert "same id" in refused.value.hint


# --- order ----------------------------------------------------------------------------------------


def finish(session: SessionHarness) -> list[str]:
    """End every run; the order in which they started, by the number of their command."""
    while session.state.current is not None:
        session.commit()
    numbers = {command.id: str(n) for n, command in enumerate(session.commands)}
    return [numbers[command_id] for command_id in session.order()]


def test_a_commit_prepares_the_next_run_at_once() -> None:
    session = given(QUEUE)
    assert session.kinds(session.commit()) == ["RunCommitted", "RunPrepared"]
    assert session.kinds(session.commit()) == ["RunCommitted"]
    assert session.state.host.phase is HostPhase.ATTACHED


@pytest.mark.parametrize(
    ("modes", "order"),
    [
        ([QUEUE, QUEUE], "012"),
        ([QUEUE, STEER], "021"),
        ([QUEUE, INTERRUPT, STEER], "0231"),
        ([PASSIVE, QUEUE], "012"),
        ([PASSIVE, PASSIVE, QUEUE, STEER], "04123"),
        ([QUEUE, PASSIVE], "01"),
        ([PASSIVE, STEER], "02"),
    ],
)
def test_urgent_inputs_go_first_and_passive_ones_only_ride_along(
    modes: list[Mode], order: str
) -> None:
    assert "".join(finish(given(*modes))) == order


def test_a_passive_input_starts_no_run() -> None:
    session = SessionHarness()
    told = session.run(PASSIVE)
    assert session.kinds(told) == [*OPENING, "InputAccepted"]
    assert told[-1].row == "AcceptWithoutWake"
    assert session.state.host.phase is HostPhase.ATTACHED
    assert session.kinds(session.run()) == ["InputAccepted", "RunPrepared"]
    assert finish(session) == ["0", "1"]


@pytest.mark.parametrize(
    ("mode", "row"),
    [
        (STEER, "AcceptWithCompletionRunningInterruptYielding"),
        (INTERRUPT, "AcceptWithCompletionRunningImmediate"),
        (PASSIVE, "AcceptWithCompletionRunningQueuedPassive"),
    ],
)
def test_a_mode_picks_its_row_while_a_run_is_going(mode: Mode, row: str) -> None:
    (accepted,) = given().run(mode)
    assert (accepted.row, accepted.mode) == (row, mode)


@pytest.mark.parametrize("mode", [STEER, INTERRUPT])
def test_without_a_run_to_interrupt_an_urgent_input_is_an_ordinary_one(mode: Mode) -> None:
    session = SessionHarness()
    session.run(PASSIVE)
    told = session.run(mode)
    assert [fact.row for fact in told] == ["AcceptWithCompletionAttachedQueued", "PrepareAttached"]
    assert finish(session) == ["0", "1"]


# --- ends -----------------------------------------------------------------------------------------


def test_a_queued_input_can_be_withdrawn() -> None:
    session = given(QUEUE)
    queued = session.of(session.commands[1])
    (cancelled,) = session.cancel(queued.run_id, "changed my mind")
    assert (cancelled.input_id, cancelled.reason) == (queued.input_id, "changed my mind")
    assert session.how(session.commands[1]) == "cancelled"
    assert session.cancel(queued.run_id) == []


def test_a_run_that_is_going_is_asked_to_end_at_its_boundary() -> None:
    session = given()
    current = session.of(session.commands[0])
    (asked,) = session.cancel(current.run_id, "enough")
    assert (asked.row, asked.run, asked.reason) == ("CancelAfterBoundary", current.run_id, "enough")
    assert session.how(session.commands[0]) == "prepared"


def test_an_unknown_run_cannot_be_cancelled() -> None:
    with refusal("INPUT_NOT_FOUND"):
        given().cancel("no-such-run")


def test_a_run_fails_only_with_its_turn() -> None:
    session = given(QUEUE)
    run_id = session.state.host.current_run_id
    for turn in (
        ObservedTurn(),
        ObservedTurn("Completed", "LlmFailure"),
        ObservedTurn("Failed", "Unknown"),
    ):
        with refusal("GUARD_REJECTED"):
            session.handle("fail_run", turn, run_id=run_id)
    told = session.handle("fail_run", ObservedTurn("Failed", "LlmFailure"), run_id=run_id)
    assert [fact.row for fact in told] == ["FailRunningToAttached", "PrepareAttached"]
    assert (told[0].turn_phase, told[0].terminal_cause_kind) == ("Failed", "LlmFailure")
    assert session.how(session.commands[0]) == "failed"


def test_a_run_is_not_committed_in_the_middle_of_its_turn() -> None:
    session = given()
    named = {"input_id": "any", "run_id": session.state.host.current_run_id}
    with refusal("GUARD_REJECTED") as refused:
        session.handle("commit", ObservedTurn("WaitingForOps"), **named)
    assert refused.value.hint == "end the turn with run_completed, run_failed or run_cancelled"
    with refusal("GUARD_REJECTED"):
        session.handle("commit", ObservedTurn("Failed", "LlmFailure"), **named)
    session.handle("commit", ObservedTurn("Completed"), **named)
    with refusal("GUARD_REJECTED"):
        session.handle("commit", **named)


def test_a_run_taken_back_has_ended_too() -> None:
    session = given()
    session.handle("rollback_run", run_id=session.state.host.current_run_id)
    assert session.how(session.commands[0]) == "rolled_back"


def test_destroying_a_session_ends_its_inputs_and_the_next_begins_a_generation() -> None:
    session = given(QUEUE, STEER)
    told = session.handle("Destroy")
    assert session.kinds(told) == ["Destroyed"] + ["InputRefused"] * 3
    assert {fact.error.code for fact in told[1:]} == {"SESSION_CLOSED"}
    assert {fact.error.hint for fact in told[1:]} == {"send it again under a new id"}
    receipts = [session.state.receipt(session.of(command)) for command in session.commands]
    assert [(r.state, r.error.code) for r in receipts] == [("refused", "SESSION_CLOSED")] * 3
    told = session.run()
    assert session.kinds(told) == [*OPENING, "InputAccepted", "RunPrepared"]
    assert {fact.generation for fact in told} == {session.state.generation} == {2}
    assert session.how(session.commands[0]) == "refused"


def test_a_stopped_session_ends_its_inputs_and_accepts_none() -> None:
    session = given(QUEUE)
    assert session.kinds(session.handle("StopRuntimeExecutor", reason="maintenance")) == [
        "ExecutorStopRequested"
    ]
    told = session.handle("RuntimeExecutorExited")
    assert session.kinds(told) == ["ExecutorExited", "InputRefused", "InputRefused"]
    with refusal("GUARD_REJECTED"):
        session.run()


def test_an_unregistered_session_ends_its_inputs_and_is_opened_by_the_next() -> None:
    session = given(QUEUE)
    told = session.handle("UnregisterSession")
    assert session.kinds(told) == ["Unregistered", "InputRefused", "InputRefused"]
    assert session.kinds(session.run()) == [*OPENING[1:], "InputAccepted", "RunPrepared"]


def test_a_retired_session_runs_its_queue_and_accepts_no_input() -> None:
    session = given(PASSIVE, QUEUE, PASSIVE)
    assert session.kinds(session.handle("Retire")) == ["Retired", "QueuedRunDrained"]
    for _ in range(3):
        with refusal("GUARD_REJECTED"):
            session.run()
        assert session.kinds(session.commit()) == ["RunCommitted", "QueuedRunDrained"]
    assert session.kinds(session.commit()) == ["RunCommitted"]
    assert session.state.host.phase is HostPhase.RETIRED
    assert list(session.ended().values()) == ["committed"] * 4


def test_a_recycled_session_accepts_inputs_again() -> None:
    session = SessionHarness()
    session.run(PASSIVE)
    session.handle("Retire")
    session.commit()
    session.handle("recycle")
    assert [fact.row for fact in session.run()] == ["AcceptWithCompletionIdleQueued", "PrepareIdle"]
    session.commit()
    assert session.state.host.phase is HostPhase.IDLE


# --- answers and repeats --------------------------------------------------------------------------


def test_clients_get_their_replies_in_the_order_of_their_requests() -> None:
    session = SessionHarness()
    session.run(reply_to="first")
    (listening,) = session.repeat(session.commands[0], "second")
    current = session.state.current
    assert (listening.input_id, listening.run) == (current.input_id, current.run_id)
    session.commit()
    assert session.answers == [("first", "committed"), ("second", "committed")]


def test_only_the_fact_that_ends_an_input_causes_replies() -> None:
    session = SessionHarness()
    session.run(reply_to="first")
    session.commit()
    telling = [fact for fact in session.history if effects(session.state, fact)]
    assert session.kinds(telling) == ["RunCommitted"]


def test_a_duplicate_ignores_quotas_and_gets_the_outcome() -> None:
    session = given(QUEUE)
    assert session.repeat(session.commands[1]) == []
    session.commit()
    session.commit()
    assert session.repeat(session.commands[1], "late") == []
    assert session.how(session.commands[1]) == "committed"


def test_a_duplicate_after_a_day_is_refused_as_forgotten() -> None:
    session = given()
    session.commit()
    session.now_ms += 24 * 3_600_000 + 1
    session.run()
    session.commit()
    with refusal("INPUT_NOT_FOUND") as refused:
        session.repeat(session.commands[0])
    assert refused.value.hint == "send it under a new id"


# --- by hand --------------------------------------------------------------------------------------


def test_a_bare_input_is_run_by_its_own_client() -> None:
    session = SessionHarness()
    for on in ("Initialize", "RegisterSession", "EnsureSessionWithExecutor"):
        session.handle(on)
    assert session.state.meta.last_used_at == T0
    told = session.handle("accept_with_completion", input_id="theirs")
    assert session.kinds(told) == ["InputAccepted"], "the queue does not start it"
    session.handle("prepare", run_id="their-run")
    session.run()
    told = session.handle("commit", input_id="theirs", run_id="their-run")
    assert session.kinds(told) == ["RunCommitted", "RunPrepared"]
    assert session.state.queue == ()


def test_a_bare_input_has_no_run_to_be_cancelled_by_and_ends_with_the_session() -> None:
    session = given()
    session.handle("accept_with_completion", input_id="theirs")
    with refusal("INPUT_NOT_FOUND"):
        session.cancel("")
    refused = session.handle("Destroy")[-1]
    assert (refused.input_id, refused.run) == ("theirs", UNSET)


def test_a_bare_input_sent_twice_has_one_end() -> None:
    session = given()
    session.handle("accept_with_completion", input_id="theirs")
    (passive,) = session.handle("accept_without_wake", input_id="theirs")
    assert passive.mode is PASSIVE
    assert [(owed.input_id, owed.waking) for owed in session.state.queue] == [("theirs", False)]


def test_a_commit_by_hand_does_not_end_an_input_that_has_a_run_of_its_own() -> None:
    session = SessionHarness()
    session.run(PASSIVE)
    session.handle("prepare", run_id="by-hand")
    waiting = session.of(session.commands[0])
    session.handle("commit", input_id=waiting.input_id, run_id="by-hand")
    assert session.how(session.commands[0]) == "queued"


def test_a_passive_input_can_be_prepared_by_its_run_id() -> None:
    session = SessionHarness()
    session.run(PASSIVE)
    waiting = session.of(session.commands[0])
    session.handle("prepare", run_id=waiting.run_id)
    assert session.state.current == waiting


def test_a_run_prepared_by_hand_survives_being_retired_under() -> None:
    session = SessionHarness()
    session.run(PASSIVE)
    session.handle("prepare", run_id="by-hand")
    session.handle("Retire")
    told = session.handle("commit", input_id="by-hand", run_id="by-hand")
    assert session.kinds(told) == ["RunCommitted", "QueuedRunDrained"]


def test_both_immediate_and_yielding_is_refused_in_every_phase() -> None:
    session = given()
    both = {"input_id": "i", "immediate": True, "interrupt_yielding": True, "wake_if_idle": True}
    with refusal("GUARD_REJECTED"):
        session.handle("accept_with_completion", **both)


def test_an_input_no_machine_knows_is_refused_by_code() -> None:
    with pytest.raises(Refused) as refused:
        given().handle("explode")
    assert refused.value.code == "NO_MATCHING_TRANSITION"


def test_a_handle_method_cannot_mean_another_session() -> None:
    with refusal("INVALID_ARGUMENT"):
        given().handle("Retire", session_id_in="another")


def test_a_client_cannot_set_what_admission_observed_of_a_turn() -> None:
    session = given()
    run_id = session.state.host.current_run_id
    with refusal("UNKNOWN_FIELD"):
        session.handle("fail_run", run_id=run_id, turn_phase="Failed")


def test_a_duplicate_handle_input_changes_nothing() -> None:
    body = HandleInput(input="Destroy")
    again = Command(verb="admission", key=KEY, id="twice", body=body, is_duplicate=True)
    assert handle_input(given().state, again, now_ms=T0) == []


def test_asking_a_run_to_yield_says_which_run() -> None:
    session = given()
    for on in ("InterruptCurrentRun", "CancelAfterBoundary"):
        (asked,) = session.handle(on)
        assert asked.run == session.state.host.current_run_id


def test_history_is_not_judged_again() -> None:
    """A fact that today's guards would refuse still gives the state it always gave."""
    session = SessionHarness()
    session.fold(facts.RunPrepared(row="PrepareIdle", run="r", generation=1))
    assert session.state.host.phase is HostPhase.RUNNING
    assert session.state.host.session_id is None
