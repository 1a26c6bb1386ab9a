"""A journal that ends before its reader's position."""

from __future__ import annotations

import pytest

from rookery.bus.journal import reader
from rookery.bus.journal.reader import LeaderLag
from rookery.schemas.errors import Failed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(reader, "monotonic_s", lambda: now[0])
    return now


def test_a_single_copy_that_ends_too_early_is_a_gap_at_once() -> None:
    with pytest.raises(Failed, match="FEED_GAP: the journal ends at 5, before the position 7"):
        LeaderLag().check(5, 7, copies=1)


def test_a_new_leader_has_some_time_to_catch_up(clock: list[float]) -> None:
    lag = LeaderLag()
    for _ in range(3):
        with pytest.raises(Failed, match="SERVER_UNREACHABLE"):
            lag.check(5, 7, copies=3)
        clock[0] += 4.0
    lag.check(7, 7, copies=3)
    clock[0] += 10.0
    with pytest.raises(Failed, match="SERVER_UNREACHABLE"):
        lag.check(5, 7, copies=3)
    clock[0] += 16.0
    with pytest.raises(Failed, match="FEED_GAP"):
        lag.check(5, 7, copies=3)
