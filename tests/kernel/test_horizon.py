"""Laws of the horizon: it never passes what is open, and reaches everything that is not."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from rookery.actors.kernel.horizon import Horizon

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
def test_the_horizon_never_passes_what_is_under_way_or_unfinished(story: list[tuple[str, int]]):
    """Appends get their sequence when they are stored and are heard of in any order."""
    horizon = Horizon()
    end, before = 0, 0
    under_way: list[tuple[object, int]] = []
    unfinished: list[tuple[object, int]] = []
    for what, number in story:
        match what:
            case "append":
                ticket = horizon.open_next()
                end += number
                under_way.append((ticket, end))
            case "settle" if under_way:
                ticket, sequence = under_way.pop(number % len(under_way))
                unfinished.append((horizon.open(sequence), sequence))
                horizon.passed(sequence)
                ticket.close()  # type: ignore[attr-defined]
            case "close" if unfinished:
                unfinished.pop(number % len(unfinished))[0].close()  # type: ignore[attr-defined]
            case "foreign":
                end += number
                horizon.passed(end)
        now = horizon.now()
        assert now >= before
        assert all(now < sequence for _, sequence in [*under_way, *unfinished])
        before = now
    for ticket, sequence in under_way:
        horizon.passed(sequence)
        ticket.close()  # type: ignore[attr-defined]
    for ticket, _ in unfinished:
        ticket.close()  # type: ignore[attr-defined]
        ticket.close()  # type: ignore[attr-defined] # Twice is harmless.
    assert horizon.now() >= max((sequence for _, sequence in under_way), default=0)


@given(st.lists(st.integers(1, 50), min_size=1))
def test_the_horizon_goes_back_for_a_partition_that_is_taken_up(sequences: list[int]):
    horizon = Horizon()
    horizon.passed(100)
    assert horizon.now() == 100
    tickets = [horizon.open(sequence) for sequence in sequences]
    for sequence, ticket in sorted(zip(sequences, tickets, strict=True), key=lambda pair: pair[0]):
        assert horizon.now() == sequence - 1
        ticket.close()
    assert horizon.now() == 100


def test_tickets_may_be_closed_by_any_thread():
    horizon = Horizon()
    tickets = [[horizon.open(n % 50 + 1) for n in range(2_000)] for _ in range(4)]
    horizon.passed(50)
    threads = [
        threading.Thread(target=lambda mine=mine: [ticket.close() for ticket in mine])
        for mine in tickets
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert horizon.now() == 50
