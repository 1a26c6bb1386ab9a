"""Observers of the handles: told once, after the lock is released, of what was decided under it."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Thread
from typing import Any

import pytest

from rookery.actors.kernel.machines.authority import Authority
from rookery.actors.kernel.machines.session_host import ATTACHED, SessionHost
from rookery.actors.peers.handles_exchange import InteractionStreamHandle, PeerInteractionHandle
from rookery.actors.peers.handles_session import SessionContextHandle
from rookery.actors.peers.stream_machine import STREAMS
from rookery.actors.turns.handles_realtime import RealtimeProductTurnHandle
from rookery.schemas.machines.peer import PeerTerminalDisposition

CORRELATIONS = [f"01890000-0000-7000-8000-00000000000{n}" for n in range(8)]
CORRELATION = CORRELATIONS[0]
CLEAN, DEFERRED, IMMEDIATE = "Clean", "StaleDeferred", "StaleImmediate"


class Notes:
    """Every kind of observer: it writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def on_peer_interaction_cleanup(self, corr_id: str) -> None:
        self.told.append(corr_id)

    def on_interaction_stream_cleanup(self, corr_id: str) -> None:
        self.told.append(corr_id)

    def on_session_context_advanced(self, updated_at_ms: int) -> None:
        self.told.append(updated_at_ms)

    def on_realtime_projection_freshness_changed(
        self, new_freshness: str, frontier_ms: int
    ) -> None:
        self.told.append((str(new_freshness), frontier_ms))


def attached() -> Authority:
    return Authority(SessionHost(phase=ATTACHED, session_id="s"))


# --- what is told ---------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["completed", "failed", "timed out"])
def test_a_request_is_cleaned_up_once_when_it_has_ended(end: str) -> None:
    requests, notes = PeerInteractionHandle(attached()), Notes()
    requests.install_cleanup_observer(notes)
    requests.request_sent(CORRELATION, "peer")
    requests.response_progress(CORRELATION)
    assert notes.told == []
    if end == "timed out":
        requests.request_timed_out(CORRELATION)
    else:
        requests.response_terminal(CORRELATION, PeerTerminalDisposition(end.capitalize()))
    assert notes.told == [CORRELATION]
    assert requests.outbound_state(CORRELATION) is None
    requests.request_received(CORRELATION)
    requests.response_replied(CORRELATION)
    assert notes.told == [CORRELATION]


def test_a_stream_is_cleaned_up_whichever_way_it_ends() -> None:
    authority, notes = attached(), Notes()
    streams = InteractionStreamHandle(authority)
    streams.install_cleanup_observer(notes)
    one, two, three, four = CORRELATIONS[:4]
    for corr_id in (one, two, three, four):
        streams.reserved(corr_id)
    streams.expired(one)
    streams.attached(two)
    streams.completed(two)
    streams.attached(three)
    streams.closed_early(three)
    authority.apply(STREAMS, "abandoned", {"corr_id": four, "reason": "gone"})
    assert notes.told == [one, two, three, four]


def test_an_invalid_correlation_id_is_logged_and_not_reported(caplog: Any) -> None:
    requests, notes = PeerInteractionHandle(attached()), Notes()
    requests.install_cleanup_observer(notes)
    requests.request_sent("not-a-uuid", "peer")
    with caplog.at_level(logging.WARNING):
        requests.request_timed_out("not-a-uuid")
    assert notes.told == []
    assert [record.message for record in caplog.records] == [
        "cleanup skipped: invalid correlation id"
    ]


def test_an_observer_gets_every_freshness_and_never_a_phase_or_a_policy() -> None:
    product, notes = RealtimeProductTurnHandle(attached()), Notes()
    product.install_projection_freshness_observer(notes)
    product.turn_in_flight()
    product.classify_client_input_submitted()
    assert notes.told == []
    product.projection_advance_observed(5)
    product.classify_turn_terminated()
    product.projection_refreshed(6)
    assert not product.projection_refreshed(6)
    product.projection_advance_observed(9)
    product.projection_reset(1)
    assert notes.told == [
        *((DEFERRED, 5), (IMMEDIATE, 5), (CLEAN, 6)),
        *((DEFERRED, 9), (CLEAN, 9)),
    ]


# --- who is told ----------------------------------------------------------------------------------


def test_only_the_last_installed_observer_is_notified() -> None:
    authority, first, second = attached(), Notes(), Notes()
    context = SessionContextHandle(authority)
    context.install_observer(first)
    context.context_advanced(1)
    SessionContextHandle(authority).install_observer(second)
    context.context_advanced(2)
    assert (first.told, second.told) == ([1], [2])


def test_an_observer_is_not_kept_alive_and_its_end_is_no_error() -> None:
    context = SessionContextHandle(attached())
    context.install_observer(Notes())
    gc.collect()
    assert context.context_advanced(1)


def test_an_observer_that_fails_undoes_nothing(caplog: Any) -> None:
    class Failing(Notes):
        def on_session_context_advanced(self, updated_at_ms: int) -> None:
            raise RuntimeError("no")

    context, failing = SessionContextHandle(attached()), Failing()
    context.install_observer(failing)
    assert context.context_advanced(1)
    assert context.current_watermark_ms() == 1
    assert "observer failed" in caplog.text


def test_an_observer_may_ask_the_same_authority_even_from_another_thread() -> None:
    authority = attached()
    context = SessionContextHandle(authority)

    class Asking(Notes):
        def on_session_context_advanced(self, updated_at_ms: int) -> None:
            super().on_session_context_advanced(updated_at_ms)
            if updated_at_ms < 3:
                context.context_advanced(updated_at_ms + 1)
            other = Thread(target=lambda: self.told.append(context.current_watermark_ms()))
            other.start()
            other.join(10)
            assert not other.is_alive(), "the lock is still held"

    asking = Asking()
    context.install_observer(asking)
    context.context_advanced(1)
    assert asking.told == [1, 2, 3, 3, 3, 3]


def test_an_observer_gets_steps_taken_together_when_all_are_done() -> None:
    authority, notes = attached(), Notes()
    context = SessionContextHandle(authority)
    context.install_observer(notes)
    with authority:
        context.context_advanced(1)
        context.context_advanced(2)
        assert notes.told == []
    assert notes.told == [1, 2]

    def fail_in_between() -> None:
        with authority:
            context.context_advanced(3)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_in_between()
    assert notes.told == [1, 2, 3]


# --- the baseline ---------------------------------------------------------------------------------


def test_a_tick_is_in_the_baseline_or_delivered_and_never_both_or_neither() -> None:
    for _ in range(60):
        context, notes, begun = SessionContextHandle(attached()), Notes(), Barrier(3)
        accepted: list[int] = []

        def advance(
            ticks: range,
            context: SessionContextHandle = context,
            begun: Barrier = begun,
            accepted: list[int] = accepted,
        ) -> None:
            begun.wait()
            accepted.extend(tick for tick in ticks if context.context_advanced(tick))

        with ThreadPoolExecutor(2) as pool:
            threads = [pool.submit(advance, range(first, 80, 2)) for first in (1, 2)]
            begun.wait()
            baseline = context.install_observer_with_baseline(notes)
            for thread in threads:
                thread.result()
        delivered = sorted(notes.told)
        assert delivered == sorted(tick for tick in accepted if tick > baseline)
        assert len(set(delivered)) == len(delivered)
        assert baseline == max([0, *(tick for tick in accepted if tick not in delivered)])


class Interrupted(Authority):
    """While an observer is being installed another thread does something, if it can."""

    def __init__(self) -> None:
        super().__init__(SessionHost(phase=ATTACHED, session_id="s"))
        self.meanwhile: Callable[[], object] = lambda: None
        self.others: list[Thread] = []

    def install(self, *how: Any) -> None:
        super().install(*how)
        other = Thread(target=self.meanwhile)
        self.others.append(other)
        other.start()
        other.join(0.1)  # As long as the lock is held, in vain.

    def end(self) -> None:
        for other in self.others:
            other.join(10)


def test_nothing_comes_between_an_observer_and_its_baseline() -> None:
    authority, notes = Interrupted(), Notes()
    context = SessionContextHandle(authority)
    authority.meanwhile = lambda: context.context_advanced(1)
    assert context.install_observer_with_baseline(notes) == 0
    authority.end()
    assert notes.told == [1]


def test_nothing_comes_between_an_observer_and_its_snapshot() -> None:
    authority, notes = Interrupted(), Notes()
    product = RealtimeProductTurnHandle(authority)
    authority.meanwhile = lambda: product.projection_advance_observed(1)
    found = product.install_projection_freshness_observer_with_snapshot(notes)
    authority.end()
    assert (found, notes.told) == ((CLEAN, 0), [(IMMEDIATE, 1)])


def test_a_change_of_freshness_is_in_the_snapshot_or_delivered() -> None:
    for _ in range(60):
        product, notes, begun = RealtimeProductTurnHandle(attached()), Notes(), Barrier(2)

        def advance(product: RealtimeProductTurnHandle = product, begun: Barrier = begun) -> None:
            begun.wait()
            for at_ms in range(1, 60):
                assert product.projection_advance_observed(at_ms)

        with ThreadPoolExecutor(1) as pool:
            thread = pool.submit(advance)
            begun.wait()
            found = product.install_projection_freshness_observer_with_snapshot(notes)
            thread.result()
        freshness, frontier_ms = found
        assert freshness == (IMMEDIATE if frontier_ms else CLEAN)
        assert notes.told == [(IMMEDIATE, at_ms) for at_ms in range(frontier_ms + 1, 60)]


def test_of_two_threads_that_end_the_same_request_one_cleans_up() -> None:
    requests, notes = PeerInteractionHandle(attached()), Notes()
    requests.install_cleanup_observer(notes)

    def end(corr_id: str) -> bool:
        try:
            requests.request_timed_out(corr_id)
        except Exception:
            return False
        return True

    for corr_id in CORRELATIONS:
        requests.request_sent(corr_id, "peer")
    with ThreadPoolExecutor(8) as pool:
        ended = list(pool.map(end, CORRELATIONS * 4))
    assert sum(ended) == len(CORRELATIONS)
    assert sorted(notes.told) == CORRELATIONS
