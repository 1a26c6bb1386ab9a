"""Slots and starts stay within the limits of a capability."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.actors.slot_limits import ConcurrencyLimit, RateWindow

MINUTE_MS = 60_000


def test_a_tool_has_as_many_slots_as_declared():
    slots = ConcurrencyLimit(2)
    assert [slots.try_acquire() for _ in range(3)] == [True, True, False]
    slots.release()
    assert [slots.try_acquire() for _ in range(2)] == [True, False]


def test_a_slot_is_released_once():
    slots = ConcurrencyLimit(1)
    with pytest.raises(AssertionError):
        slots.release()


def test_a_minute_has_as_many_starts_as_the_rate_permits():
    window = RateWindow(2)
    assert window.try_acquire(1_000)
    assert window.try_acquire(31_000)
    assert not window.try_acquire(60_999)
    assert window.free_in_ms(60_999) == 1
    assert window.try_acquire(61_000)
    assert window.free_in_ms(61_000) == 30_000


def test_a_clock_that_is_set_back_opens_no_second_minute():
    window = RateWindow(1)
    assert window.try_acquire(100_000)
    assert not window.try_acquire(0)
    assert window.free_in_ms(0) == MINUTE_MS
    assert window.try_acquire(160_000)


def test_without_a_rate_nothing_waits():
    window = RateWindow(None)
    assert all(window.try_acquire(0) for _ in range(1_000))
    assert window.free_in_ms(0) == 0


STEPS = st.lists(st.integers(0, MINUTE_MS), max_size=40)


@given(st.integers(1, 4), STEPS)
def test_no_minute_ever_has_more_starts_than_the_rate(rate_per_min: int, steps: list[int]):
    window, now_ms, starts = RateWindow(rate_per_min), 0, []
    for step in steps:
        now_ms += step
        in_window = [start for start in starts if start > now_ms - MINUTE_MS]
        wait_ms = window.free_in_ms(now_ms)
        assert (wait_ms == 0) == (len(in_window) < rate_per_min)
        if window.try_acquire(now_ms):
            starts.append(now_ms)
        else:
            assert 0 < wait_ms <= MINUTE_MS
            assert window.free_in_ms(now_ms + wait_ms - 1) > 0
            now_ms += wait_ms
            assert window.try_acquire(now_ms)
            starts.append(now_ms)
    assert all(
        late - early >= MINUTE_MS
        for early, late in zip(starts, starts[rate_per_min:], strict=False)
    )
