"""Laws of the watermark: it passes nothing unfinished and everything finished."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from rookery.actors.kernel.effect_runner import Watermark

steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.just("settle"), st.integers(0, 9)),
        st.tuples(st.just("close"), st.integers(0, 9)),
        st.tuples(st.just("foreign"), st.integers(1, 9)),
        st.tuples(st.just("look"), st.just(0)),
    ),
    max_size=60,
)


@given(steps)
def test_the_watermark_never_passes_work_in_flight_or_unfinished_facts(
    story: list[tuple[str, int]],
):
    """Appends get their sequence when they are stored; acks arrive in any order."""
    horizon = Watermark()
    end, before = 0, 0
    under_way: list[tuple[object, int]] = []
    unfinished: list[tuple[object, int]] = []
    for what, number in story:
        match what:
            case "append":
                ticket = horizon.hold_next()
                end += number
                under_way.append((ticket, end))
            case "settle" if under_way:
                ticket, sequence = under_way.pop(number % len(under_way))
                unfinished.append((horizon.hold(sequence), sequence))
                horizon.advance(sequence)
                ticket.release()  # type: ignore[attr-defined]
            case "close" if unfinished:
                unfinished.pop(number % len(unfinished))[0].release()  # type: ignore[attr-defined]
            case "foreign":
                end += number
                horizon.advance(end)
        now = horizon.state(100)
        assert now.through >= before
        assert all(now.through < sequence for _, sequence in under_way)
        below = {sequence for _, sequence in unfinished if sequence <= now.through}
        assert now.unfinished == tuple(sorted(below))
        before = now.through
    for ticket, sequence in under_way:
        horizon.advance(sequence)
        ticket.release()  # type: ignore[attr-defined]
    for ticket, _ in unfinished:
        ticket.release()  # type: ignore[attr-defined]
        ticket.release()  # type: ignore[attr-defined] # Twice is harmless.
    last = max((sequence for _, sequence in under_way), default=0)
    assert horizon.state(0).through >= last
    assert horizon.state(100).unfinished == ()


@given(st.sets(st.integers(1, 50), min_size=1), st.integers(0, 9))
def test_too_many_unfinished_facts_hold_the_watermark_back(sequences: set[int], names_max: int):
    horizon = Watermark()
    horizon.advance(100)
    assert horizon.state(names_max) == (100, ())
    tickets = {sequence: horizon.hold(sequence) for sequence in sequences}
    while tickets:
        left = sorted(tickets)
        assert horizon.held == len(left)
        through = left[names_max] - 1 if len(left) > names_max else 100
        assert horizon.state(names_max) == (through, tuple(left[:names_max]))
        tickets.pop(left[0]).release()
    assert horizon.state(names_max) == (100, ())


def test_holds_may_be_released_by_any_thread():
    horizon = Watermark()
    tickets = [[horizon.hold(n % 50 + 1) for n in range(2_000)] for _ in range(4)]
    horizon.advance(50)
    threads = [
        threading.Thread(target=lambda mine=mine: [ticket.release() for ticket in mine])
        for mine in tickets
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert horizon.state(0) == (50, ())
