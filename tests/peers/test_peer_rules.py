"""What a reader of the peer machines' tables would not guess: the notes of ``machines.md``."""

from __future__ import annotations

from typing import Any

import pytest

from rookery.actors.kernel.machines.machine import (
    IDLE,
    INITIALIZING,
    RUNNING,
    Edition,
    Machine,
    RejectionKind,
    SessionHost,
    TransitionRejected,
)
from rookery.actors.peers.context_machine import CONTEXT, SessionContext
from rookery.actors.peers.drain_machine import DRAIN, CommsDrain, DrainPhase
from rookery.actors.peers.interaction_machine import (
    INBOUND,
    OUTBOUND,
    InboundRequests,
    OutboundRequests,
)
from rookery.actors.peers.stream_machine import (
    RESERVATION_TTL_MS,
    STREAMS,
    InteractionStreams,
    reservation_overdue,
)
from rookery.schemas.machines.peer import DrainMode
from tests.machines.oracle_comparison import variables

REGISTERED = SessionHost(phase=RUNNING, session_id="session")
UNREGISTERED = SessionHost(phase=RUNNING)
SEED, HEAD = Edition


class MachineRun:
    """A machine and the state it has come to."""

    def __init__(self, machine: Machine[Any], state: Any, edition: Edition = HEAD) -> None:
        self.machine, self.state, self.edition = machine, state, edition

    def ask(self, on: str, **params: Any) -> list[tuple[Any, ...]]:
        """The effects, each as its name and its fields."""
        draft = self.machine.candidate(on, params)
        fact = self.machine.decide(self.state, on, draft, edition=self.edition)
        self.state = self.machine.evolve(self.state, fact)
        effects = self.machine.effects(self.state, fact)
        return [(e.__struct_config__.tag, *variables(e).values()) for e in effects]

    def refuses(self, on: str, **params: Any) -> bool:
        """Because of its state; an input it does not know is something else."""
        try:
            self.ask(on, **params)
        except TransitionRejected as rejected:
            return rejected.kind is RejectionKind.GUARD_REJECTED
        return False


# --- draining -------------------------------------------------------------------------------------


def drain(edition: Edition = HEAD, host: SessionHost = REGISTERED, **given: Any) -> MachineRun:
    return MachineRun(DRAIN, CommsDrain(host=host, **given), edition)


def test_wanting_the_task_asks_for_it_each_time_and_changes_nothing() -> None:
    task = drain()
    before = task.state
    assert task.ask("ensure_drain_running") == [("SpawnDrainTask",)]
    assert task.ask("ensure_drain_running") == [("SpawnDrainTask",)]
    assert task.state == before


def test_a_task_is_wanted_only_where_the_session_is_worked_for() -> None:
    assert drain(host=SessionHost(phase=IDLE, session_id="session")).refuses("ensure_drain_running")
    assert drain(host=UNREGISTERED).refuses("ensure_drain_running")


def test_a_running_task_is_not_spawned_again_and_keeps_its_mode() -> None:
    task = drain()
    task.ask("spawn_drain", mode="Timed")
    assert task.refuses("spawn_drain", mode="PersistentHost")
    assert task.state.drain_mode is DrainMode.TIMED


def test_the_mode_outlives_a_stop_and_a_respawnable_exit_but_no_clean_one() -> None:
    task = drain()
    task.ask("spawn_drain", mode="AttachedSession")
    for leaves in ("stop_drain", "drain_exited_respawnable"):
        task.ask(leaves)
        assert task.state.drain_mode is DrainMode.ATTACHED_SESSION
    task.ask("drain_exited_clean")
    assert task.state == drain().state


def test_only_a_running_task_is_stopped() -> None:
    assert drain().refuses("stop_drain")
    assert drain(phase=DrainPhase.EXITED_RESPAWNABLE).refuses("stop_drain")


def test_an_exit_is_believed_even_where_nothing_ran_or_no_session_is_registered() -> None:
    for exited in ("drain_exited_clean", "drain_exited_respawnable"):
        assert drain(host=UNREGISTERED).ask(exited) == []


@pytest.mark.parametrize(
    ("mode", "reason", "phase"),
    [
        ("PersistentHost", "Failed", DrainPhase.EXITED_RESPAWNABLE),
        ("PersistentHost", "IdleTimeout", DrainPhase.STOPPED),
        ("AttachedSession", "Failed", DrainPhase.STOPPED),
    ],
)
def test_only_a_persistent_hosts_failed_task_is_to_be_started_again(
    mode: str, reason: str, phase: DrainPhase
) -> None:
    task = drain()
    task.ask("spawn_drain", mode=mode)
    assert task.ask("notify_drain_exited", reason=reason) == [
        ("RuntimeNotice", "Drain", "drain exited")
    ]
    assert task.state.phase is phase


def test_in_the_seed_a_notified_exit_only_emits_a_notice() -> None:
    task = drain(SEED)
    task.ask("spawn_drain", mode="PersistentHost")
    task.ask("notify_drain_exited", reason="Failed")
    assert task.state.phase is DrainPhase.RUNNING


# --- requests and their answers -------------------------------------------------------------------


def outbound(edition: Edition = HEAD, host: SessionHost = UNREGISTERED) -> MachineRun:
    return MachineRun(OUTBOUND, OutboundRequests(host=host), edition)


ENDS = [
    ("response_terminal", {"disposition": "Completed"}, "Completed"),
    ("response_terminal", {"disposition": "Failed"}, "Failed"),
    ("request_timed_out", {}, "TimedOut"),
    ("request_send_failed", {}, "Failed"),
    ("response_rejected", {}, "Failed"),
]
ends = pytest.mark.parametrize(("on", "how", "state"), ENDS)


@ends
def test_an_end_is_emitted_before_its_one_cleanup_and_then_dropped(
    on: str, how: dict[str, Any], state: str
) -> None:
    requests = outbound()
    requests.ask("request_sent", corr_id="a", dest="peer")
    requests.ask("response_progress", corr_id="a")
    assert requests.ask(on, corr_id="a", **how) == [
        ("PeerInteractionStateChanged", "a", state),
        ("PeerInteractionCleanup", "a"),
    ]
    assert requests.state == outbound().state


@ends
def test_what_comes_after_the_end_is_refused_until_the_id_is_used_again(
    on: str, how: dict[str, Any], state: str
) -> None:
    requests = outbound()
    requests.ask("request_sent", corr_id="a", dest="peer")
    requests.ask(on, corr_id="a", **how)
    for late, params, _ in [*ENDS, ("response_progress", {}, "")]:
        assert requests.refuses(late, corr_id="a", **params)
    assert requests.ask("request_sent", corr_id="a", dest="peer")


def test_progress_is_emitted_each_time() -> None:
    requests = outbound()
    requests.ask("request_sent", corr_id="a", dest="peer")
    for _ in range(2):
        told = requests.ask("response_progress", corr_id="a")
        assert told == [("PeerInteractionStateChanged", "a", "AcceptedProgress")]


def test_a_request_is_not_sent_twice_and_its_destination_is_not_kept() -> None:
    requests = outbound()
    requests.ask("request_sent", corr_id="a", dest="peer")
    assert requests.refuses("request_sent", corr_id="a", dest="another")
    assert dict(requests.state.pending_peer_requests) == {"a": "Sent"}


def test_the_seed_does_not_know_that_sending_may_fail() -> None:
    requests = outbound(SEED)
    requests.ask("request_sent", corr_id="a", dest="peer")
    for on in ("request_send_failed", "response_rejected"):
        with pytest.raises(TransitionRejected) as rejected:
            requests.ask(on, corr_id="a")
        assert rejected.value.kind is RejectionKind.NO_MATCHING_TRANSITION


def test_a_session_that_was_not_opened_sends_nothing() -> None:
    assert outbound(host=SessionHost(phase=INITIALIZING)).refuses(
        "request_sent", corr_id="a", dest="p"
    )


def test_a_reply_needs_a_request_and_is_given_once() -> None:
    requests = MachineRun(INBOUND, InboundRequests(host=UNREGISTERED))
    assert requests.refuses("response_replied", corr_id="a")
    for _ in range(2):
        requests.ask("request_received", corr_id="a")
        assert requests.refuses("request_received", corr_id="a")
        told = requests.ask("response_replied", corr_id="a")
        assert told == [("InboundPeerInteractionStateChanged", "a", "Replied")]
        assert requests.refuses("response_replied", corr_id="a")


def test_a_refusal_names_the_handle_and_the_phase_of_the_host() -> None:
    with pytest.raises(TransitionRejected) as rejected:
        outbound().ask("response_progress", corr_id="a")
    assert str(rejected.value) == (
        "DSL transition rejected in PeerInteractionHandle::response_progress: "
        "guard rejected transition from phase Running for response_progress"
    )


# --- streams of answers ---------------------------------------------------------------------------


def streams(*asked: str) -> MachineRun:
    driven = MachineRun(STREAMS, InteractionStreams(host=UNREGISTERED))
    for on in asked:
        driven.ask(on, corr_id="a")
    return driven


def test_of_expiry_and_a_reader_exactly_one_wins() -> None:
    assert streams("reserved", "attached").refuses("expired", corr_id="a")
    assert streams("reserved", "expired").refuses("attached", corr_id="a")


def test_only_what_is_read_is_completed_or_closed() -> None:
    for ended in ("completed", "closed_early"):
        assert streams("reserved").refuses(ended, corr_id="a")
        assert streams("reserved", "attached", ended).refuses(ended, corr_id="a")


@pytest.mark.parametrize(
    ("before", "end", "state"),
    [
        (("reserved", "attached"), "completed", "Completed"),
        (("reserved", "attached"), "closed_early", "ClosedEarly"),
        (("reserved",), "expired", "Expired"),
    ],
)
def test_an_ended_stream_is_cleaned_up_and_may_be_reserved_again(
    before: tuple[str, ...], end: str, state: str
) -> None:
    driven = streams(*before)
    assert driven.ask(end, corr_id="a") == [
        ("InteractionStreamStateChanged", "a", state),
        ("InteractionStreamCleanup", "a"),
    ]
    assert driven.state == streams().state
    assert driven.ask("reserved", corr_id="a")


@pytest.mark.parametrize("before", [("reserved",), ("reserved", "attached")])
def test_a_stream_is_abandoned_read_or_not_and_its_cleanup_says_why(
    before: tuple[str, ...],
) -> None:
    assert streams(*before).ask("abandoned", corr_id="a", reason="the peer is gone") == [
        ("InteractionStreamStateChanged", "a", "Abandoned"),
        ("InteractionStreamCleanup", "a", "the peer is gone"),
    ]


def test_a_reservation_is_overdue_only_after_all_of_its_time() -> None:
    assert RESERVATION_TTL_MS == 30_000
    assert not reservation_overdue(1_000, 31_000)
    assert reservation_overdue(1_000, 31_001)


# --- the context's watermark ----------------------------------------------------------------------


def test_the_watermark_only_rises_and_each_rise_is_emitted_once() -> None:
    context = MachineRun(CONTEXT, SessionContext(host=UNREGISTERED))
    assert context.refuses("context_advanced", updated_at_ms=0)
    assert context.ask("context_advanced", updated_at_ms=7) == [("SessionContextAdvanced", 7)]
    for stale in (7, 6, 0):
        assert context.refuses("context_advanced", updated_at_ms=stale)
    assert context.state.last_updated_at_ms == 7
