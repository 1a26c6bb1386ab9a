"""The handles of a session: one authority, and every method does what its machine's input does."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rookery.actors.admission.handle import SessionAdmissionHandle, SessionLifecycle
from rookery.actors.kernel.machines.authority import Authority
from rookery.actors.kernel.machines.machine import Edition, RejectionKind, TransitionRejected
from rookery.actors.kernel.machines.session_host import (
    ATTACHED,
    INITIALIZING,
    RETIRED,
    RUNNING,
)
from rookery.actors.peers.handles_session import (
    PeerCommsHandle,
    SessionContextHandle,
)
from rookery.actors.surfaces.handle import ExternalToolSurfaceHandle, McpServerLifecycleHandle
from rookery.actors.surfaces.surface_machine import RejectSurfaceCall
from rookery.actors.turns.handle import TurnStateHandle
from rookery.actors.turns.handles_realtime import ModelRoutingHandle, RealtimeProductTurnHandle
from rookery.actors.turns.realtime_turn_machine import RealtimeProductTurnPhase
from rookery.schemas.facts import surface as surface_facts
from rookery.schemas.machines.peer import (
    PeerIngressPlainEventFacts,
)
from rookery.schemas.machines.surface import ExternalToolSurfaceFailureCause as FailureCause
from rookery.schemas.machines.turn import (
    AsyncOpRef,
    TurnPhase,
    TurnTerminalCauseKind,
    TurnTerminalOutcome,
    WaitPolicy,
)
from tests.machines.handle_calls import (
    BROKEN,
    CALLS,
    CONVERSATION,
    ENDS,
    ENVELOPE,
    LOOKS,
    OP,
    OTHER_RUN,
    RUN,
    UNREACHABLE,
    Shadow,
    likely_call,
)


def attached(edition: Edition = Edition.HEAD) -> Authority:
    """Of a session that serves."""
    authority = Authority(edition=edition)
    lifecycle = SessionLifecycle(authority)
    lifecycle.apply("Initialize")
    lifecycle.apply("RegisterSession", session_id_in="s")
    lifecycle.apply("EnsureSessionWithExecutor", session_id_in="s")
    return authority


def started(authority: Authority, run_id: str = RUN) -> TurnStateHandle:
    turn = TurnStateHandle(authority)
    turn.start_conversation_run(run_id, *CONVERSATION)
    return turn


# --- every method ---------------------------------------------------------------------------------


def outcome(call: Callable[[], Any]) -> RejectionKind | None:
    try:
        return RejectionKind.GUARD_REJECTED if call() is False else None
    except TransitionRejected as rejected:
        return rejected.kind


def test_every_method_of_every_handle_is_called_here() -> None:
    handles = {call[0] for call in CALLS}
    called = {(call[0], call[1]) for call in CALLS}
    for handle in handles:
        methods = {name for name, _ in inspect.getmembers(handle, inspect.isfunction)}
        inputs = {on for call in CALLS if call[0] is handle for on in call[3].inputs}
        for method in (methods & inputs) - {*ENDS, *LOOKS}:
            assert (handle, method) in called, (handle, method)


@pytest.mark.parametrize("edition", Edition)
def test_every_method_does_what_its_machine_does(edition: Edition) -> None:
    rng, accepted = random.Random(7), set()
    for _ in range(100):
        authority = attached(edition)
        shadow = Shadow(authority.host, edition)
        for _ in range(120):
            handle, method, args, machine, on, params = likely_call(rng, shadow, accepted)
            expected = shadow.ask(machine, on, params)
            call = getattr(handle(authority), method)
            assert outcome(lambda call=call, args=args: call(*args)) is expected, (method, params)
            assert authority.read(machine) == shadow.state(machine)
            assert authority.host == shadow.host
            if expected is None:
                accepted.add((handle, method))
    assert {call[1] for call in CALLS} - {method for _, method in accepted} <= {UNREACHABLE}


def test_a_rejection_says_where_what_and_why() -> None:
    with pytest.raises(TransitionRejected) as rejected:
        TurnStateHandle(attached()).boundary_continue()
    assert rejected.value.kind is RejectionKind.GUARD_REJECTED
    assert rejected.value.context == "TurnStateHandle::boundary_continue"
    assert rejected.value.reason == (
        "guard rejected transition from phase Attached for boundary_continue"
    )
    assert str(rejected.value) == (
        "DSL transition rejected in TurnStateHandle::boundary_continue: "
        "guard rejected transition from phase Attached for boundary_continue"
    )


# --- one authority --------------------------------------------------------------------------------


def test_all_handles_of_a_session_see_what_one_of_them_has_done() -> None:
    authority = attached()
    turn, admission = TurnStateHandle(authority), SessionAdmissionHandle(authority)
    admission.prepare(RUN)
    turn.start_conversation_run(RUN, *CONVERSATION)
    assert TurnStateHandle(authority).snapshot() == turn.snapshot()
    assert turn.snapshot().active_run_id == RUN
    SessionLifecycle(authority).apply("Destroy", session_id_in="s")
    with pytest.raises(TransitionRejected):
        turn.primitive_applied()
    assert not RealtimeProductTurnHandle(authority).turn_in_flight()


def test_a_handle_of_its_own_has_no_session_and_can_do_little() -> None:
    with pytest.raises(TransitionRejected):
        SessionAdmissionHandle().prepare(RUN)
    with pytest.raises(TransitionRejected):
        ModelRoutingHandle().set_baseline("model", True)
    assert not SessionContextHandle().context_advanced(1)
    assert RealtimeProductTurnHandle().turn_in_flight()
    turn = TurnStateHandle()
    turn.start_immediate_append(RUN)
    turn.primitive_applied()
    assert turn.snapshot().turn_phase is TurnPhase.COMPLETED


def test_a_surface_handle_of_its_own_is_attached() -> None:
    surfaces = ExternalToolSurfaceHandle()
    surfaces.stage_add("s", 1)
    surfaces.apply_boundary("s", 2, 1, 1)
    assert surfaces.pending_surfaces() == {"s"}
    surfaces.mark_pending_succeeded("s", 1, 1)
    assert surfaces.visible_surfaces() == {"s"}
    assert surfaces.snapshot_epoch() == 2


def test_inputs_from_many_threads_are_put_one_after_the_other() -> None:
    authority = attached()
    surfaces = ExternalToolSurfaceHandle(authority)

    def stage(number: int) -> None:
        ExternalToolSurfaceHandle(authority).stage_add(f"s{number}", number)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(stage, range(400)))
    sequences = [entry.staged_intent_sequence for entry in surfaces.diagnostic_snapshot().entries]
    assert sorted(sequences) == list(range(1, 401))


# --- runs a turn starts itself --------------------------------------------------------------------


@pytest.mark.parametrize("end", ENDS)
def test_a_direct_run_releases_its_session_at_its_reported_end(end: str) -> None:
    authority = attached()
    turn = started(authority)
    assert (authority.host.phase, authority.host.pre_run_phase) == (RUNNING, ATTACHED)
    more = (BROKEN,) if end == "run_failed" else ()
    getattr(turn, end)(RUN, *more)
    assert (authority.host.phase, authority.host.current_run_id) == (ATTACHED, None)
    assert turn.snapshot().turn_phase.is_terminal
    with pytest.raises(TransitionRejected):
        turn.acknowledge_terminal(TurnTerminalOutcome.COMPLETED)
    started(authority, OTHER_RUN)


def test_a_direct_run_of_a_handle_of_its_own_leaves_it_attached() -> None:
    authority = Authority()
    turn = started(authority)
    turn.run_completed(RUN)
    assert authority.host.phase is ATTACHED
    assert authority.host.phase is not INITIALIZING


def test_the_run_of_an_input_is_committed_by_its_preparer() -> None:
    authority = attached()
    admission = SessionAdmissionHandle(authority)
    admission.accept_with_completion("i", False, False, True)
    admission.prepare(RUN)
    started(authority).run_completed(RUN)
    assert authority.host.phase is RUNNING
    admission.commit("i", RUN)
    assert authority.host.phase is ATTACHED
    with pytest.raises(TransitionRejected):
        admission.commit("i", RUN)


def test_another_run_than_the_prepared_one_is_direct() -> None:
    authority = attached()
    SessionAdmissionHandle(authority).prepare(RUN)
    started(authority, OTHER_RUN).run_completed(OTHER_RUN)
    assert authority.host.phase is ATTACHED


def test_the_end_of_a_run_that_is_not_current_closes_nothing() -> None:
    authority = attached()
    turn = started(authority)
    with pytest.raises(TransitionRejected):
        turn.run_completed(OTHER_RUN)
    assert authority.host.current_run_id == RUN


def test_a_failed_run_keeps_the_outcome_its_turn_came_to() -> None:
    turn = started(attached())
    turn.budget_exhausted()
    turn.run_failed(RUN, BROKEN)
    assert turn.snapshot().terminal_outcome is TurnTerminalOutcome.BUDGET_EXHAUSTED
    turn = started(attached())
    turn.run_failed(RUN, BROKEN)
    assert turn.snapshot().terminal_outcome is TurnTerminalOutcome.FAILED
    assert turn.snapshot().terminal_cause_kind is TurnTerminalCauseKind.LLM_FAILURE


def test_a_retired_session_is_given_back_retired() -> None:
    authority = attached()
    lifecycle = SessionLifecycle(authority)
    lifecycle.apply("Retire", session_id_in="s")
    lifecycle.apply("DrainQueuedRun", run_id=RUN)
    started(authority).run_cancelled(RUN)
    assert lifecycle.host.phase is RETIRED


# --- what handles answer --------------------------------------------------------------------------


def test_a_call_on_an_unknown_surface_is_rejected() -> None:
    surfaces = ExternalToolSurfaceHandle()
    draft = surface_facts.CallStarted(surface_id="s")
    done = surfaces.apply_surface_input(draft)
    cause = FailureCause.SURFACE_UNAVAILABLE
    assert done.effects == (RejectSurfaceCall(surface_id="s", cause=cause),)
    assert done.phase == surfaces.diagnostic_snapshot().surface_phase
    assert draft.row == ""
    assert surfaces.surface_snapshot("s") is None


def test_an_input_that_does_not_fit_a_product_turn_is_false_and_nothing_else() -> None:
    product = RealtimeProductTurnHandle(attached())
    assert not product.turn_committed()
    assert product.turn_in_flight()
    assert not product.turn_in_flight()
    assert product.output_started()
    assert product.turn_committed()
    assert product.current_phase() is RealtimeProductTurnPhase.PREEMPTIBLE
    assert product.is_in_flight()
    assert product.should_preempt_on_input()
    assert product.classify_client_input_submitted()
    assert not product.classify_mid_turn_activity()
    assert product.reconnect_policy_on_clean_close() == "ReattachAndRecover"


def test_what_is_let_in_is_shown_as_the_session_reads_it() -> None:
    peers = PeerCommsHandle(attached())
    admission = peers.classify_external_envelope(ENVELOPE)
    assert admission.rendered_text == "[COMMS MESSAGE from Ann]\nhello"
    assert admission.classification.input_class == "ActionableMessage"
    event = peers.classify_plain_event(PeerIngressPlainEventFacts(source_name="web", body=" hi "))
    assert event.rendered_text == "[EVENT via web] hi"
    with pytest.raises(TransitionRejected):
        PeerCommsHandle().classify_external_envelope(ENVELOPE)


def test_a_barrier_says_which_operations_are_waited_for_and_not_their_references() -> None:
    turn = started(attached())
    turn.primitive_applied()
    turn.register_pending_ops({AsyncOpRef(OP, WaitPolicy.BARRIER)}, set())
    assert turn.snapshot().pending_op_refs == (AsyncOpRef(OP, WaitPolicy.DETACHED),)


def test_servers_that_are_still_connecting_are_known() -> None:
    servers = McpServerLifecycleHandle(attached())
    servers.apply_connect_pending("a")
    servers.apply_reload("b")
    servers.apply_failed("a", "broken")
    assert servers.pending_server_ids() == {"b"}
