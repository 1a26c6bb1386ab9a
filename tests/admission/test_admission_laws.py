"""Laws of the queue for any history: ``SessionHarness.check`` holds after each step.

Goal: every accepted input gets exactly one end, one run is active at a time, inputs of one kind
keep their order, and no wake-up is lost. Method: Hypothesis generates histories of all admission
commands; a command may be refused, a law may not be broken.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rookery.actors.admission.admission_machine import evolve_host
from rookery.actors.admission.state import NO_TURN, ObservedTurn
from rookery.actors.kernel.machines.machine import HostPhase, SessionHost
from rookery.schemas.envelope import Mode
from rookery.schemas.errors import Refused
from rookery.schemas.facts import session as facts
from tests.admission.session_harness import STARTS, SessionHarness
from tests.selection import examples

FAILED = ObservedTurn("Failed", "LlmFailure")
small = st.integers(0, 7)
submit = st.tuples(st.just("submit"), st.sampled_from(Mode))
step = st.one_of(
    submit,
    submit,
    st.tuples(st.just("end"), st.sampled_from(["commit", "commit", "fail_run", "rollback_run"])),
    st.tuples(st.just("end"), st.sampled_from(["commit", "commit", "fail_run", "rollback_run"])),
    st.tuples(st.just("cancel"), small),
    st.tuples(st.just("repeat"), small),
    st.tuples(st.just("wait"), st.sampled_from([1, 1_000, 90_000_000])),
    st.tuples(
        st.just("host"),
        st.sampled_from(
            ["Retire", "Destroy", "Reset", "recycle", "StopRuntimeExecutor", "UnregisterSession",
             "RuntimeExecutorExited", "Recover", "CancelAfterBoundary", "InterruptCurrentRun",
             "Initialize", "RegisterSession", "EnsureSessionWithExecutor"]
        ),
    ),
    st.tuples(st.just("bare"), st.sampled_from(["accept_without_wake", "accept_with_completion"])),
    st.tuples(st.just("by_hand"), st.sampled_from(["prepare", "DrainQueuedRun", "commit"])),
)  # fmt: skip


def take(session: SessionHarness, what: str, how: Any) -> None:
    """One step of a history."""
    current, commands = session.state.current, session.commands
    if what == "submit":
        session.run(how, reply_to=f"reply.{len(commands)}")
    elif what == "end" and current is not None:
        named = {"input_id": current.input_id} if how == "commit" else {}
        turn = NO_TURN if how == "commit" else FAILED
        session.handle(how, turn, run_id=current.run_id, **named)
    elif what == "cancel" and commands:
        found = session.state.input_of_command(commands[how % len(commands)].id)
        session.cancel("forgotten" if found is None else found.run_id)
    elif what == "repeat" and commands:
        before = len(session.history)
        session.repeat(commands[how % len(commands)], reply_to=f"again.{before}")
    elif what == "wait":
        session.now_ms += how
    elif what == "host":
        session.handle(how)
    elif what == "bare":
        session.handle(how, input_id=f"bare-{len(session.history)}")
    elif what == "by_hand" and how == "commit":
        bare = [owed.input_id for owed in session.state.queue if not owed.run_id]
        run_id = session.state.host.current_run_id or "nobody's"
        session.handle("commit", input_id=bare[0] if bare else "unheard-of", run_id=run_id)
    elif what == "by_hand":
        session.handle(how, run_id=f"by-hand-{len(session.history)}")


def lived(history: list[tuple[str, Any]]) -> SessionHarness:
    session = SessionHarness()
    for what, how in history:
        with suppress(Refused):
            take(session, what, how)
    return session


histories = st.lists(step, max_size=25)


@examples(300)
@given(histories)
def test_what_must_always_hold_holds_in_any_history(history: list[tuple[str, Any]]) -> None:
    lived(history)


@given(histories)
def test_a_destroyed_session_owes_nothing(history: list[tuple[str, Any]]) -> None:
    session = lived(history)
    if session.state.host.phase is HostPhase.INITIALIZING:
        return
    with suppress(Refused):
        session.handle("Destroy")
    assert session.state.host.phase is HostPhase.DESTROYED
    assert session.state.pending_count == 0


@given(histories)
def test_a_session_left_to_its_turns_comes_to_rest(history: list[tuple[str, Any]]) -> None:
    session = lived(history)
    for _ in range(len(session.commands) + 2):
        if session.state.host.phase is HostPhase.RUNNING:
            session.commit()
    assert session.state.host.phase is not HostPhase.RUNNING
    assert not [owed for owed in session.state.queue if owed.run_id and owed.waking]


@given(histories)
def test_every_client_gets_one_reply_at_the_end(history: list[tuple[str, Any]]) -> None:
    session = lived(history)
    ended = {to: found.state for found in session.endings for to in found.reply_to}
    assert sorted(session.answers) == sorted(ended.items())


@given(histories)
def test_inputs_of_one_kind_keep_their_order(history: list[tuple[str, Any]]) -> None:
    """When a run starts, no earlier input of its kind waits, and no urgent one does unless the run
    itself is urgent."""
    waiting: dict[str, bool] = {}
    for fact in lived(history).history:
        if isinstance(fact, facts.InputAccepted) and fact.run:
            waiting[str(fact.run)] = fact.immediate or fact.interrupt_yielding
        elif isinstance(fact, STARTS) and fact.run in waiting:
            urgent = waiting[fact.run]
            earlier = list(waiting)[: list(waiting).index(fact.run)]
            assert not [run for run in earlier if waiting[run] == urgent]
            assert urgent or not any(waiting.values())
            del waiting[fact.run]
        elif isinstance(fact, facts.InputCancelled | facts.InputRefused):
            waiting.pop(str(fact.run), None)


@given(histories, small)
def test_a_repeat_adds_nothing_but_a_listener(history: list[tuple[str, Any]], which: int) -> None:
    session = lived(history)
    if not session.commands:
        return
    command = session.commands[which % len(session.commands)]
    found = session.state.input_of_command(command.id)
    if found is None:
        return
    receipt = session.state.receipt(found)
    assert session.repeat(command) == []
    told = session.repeat(command, reply_to="late")
    assert session.kinds(told) in ([], ["ReplyRequested"])
    assert session.repeat(command, reply_to="late") == []
    again = session.state.input_of_command(command.id)
    assert again is not None
    assert session.state.receipt(again) == receipt


@given(histories)
def test_a_follower_of_the_facts_sees_admissions_host(
    history: list[tuple[str, Any]],
) -> None:
    session, copy = lived(history), SessionHost()
    for fact in session.history:
        copy = evolve_host(copy, fact)
        assert fact.phase == copy.phase
    assert copy == session.state.host
