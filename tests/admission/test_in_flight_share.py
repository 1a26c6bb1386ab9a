"""The quota of runs in flight over the processes of one node: divided by their partitions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rookery.actors.admission.in_flight import InFlightCounter, InFlightShare

PARTITIONS = 16
LIMIT = 32


def partition_of(session: str) -> int:
    return int(session) % PARTITIONS


def share(owned: range) -> InFlightShare:
    return InFlightShare(partition_of, lambda: owned, PARTITIONS)


def accepts(counter: InFlightCounter, session: str, pending: int) -> bool:
    load = counter.load(session, pending, LIMIT)
    return load.in_flight < load.limit


SESSIONS = st.lists(st.integers(0, 63).map(str), max_size=100)


@given(SESSIONS)
def test_the_processes_together_never_exceed_the_quota(sessions: list[str]):
    counters = [share(range(8)), share(range(8, PARTITIONS))]
    pending: dict[str, int] = {}
    for session in sessions:
        counter = counters[partition_of(session) >= 8]
        if accepts(counter, session, pending.get(session, 0)):
            pending[session] = pending.get(session, 0) + 1
            counter.set_local(session, pending[session])
    assert sum(pending.values()) <= LIMIT


def test_a_process_alone_has_the_whole_quota():
    counter = share(range(PARTITIONS))
    for number in range(LIMIT):
        assert accepts(counter, str(number), 0)
        counter.set_local(str(number), 1)
    assert not accepts(counter, "99", 0)


def test_runs_of_the_other_process_count_once_they_are_seen():
    counter = share(range(8))
    counter.set_seen("8", LIMIT)
    load = counter.load("0", 0, LIMIT)
    assert (load.in_flight, load.limit, load.counted) == (LIMIT, LIMIT, "the realm")


def test_a_full_share_is_named_in_the_refusal():
    counter = share(range(8))
    counter.set_local("0", LIMIT // 2)
    load = counter.load("1", 0, LIMIT)
    assert (load.limit, load.counted) == (LIMIT // 2, "this process of the node")


def test_a_session_that_just_went_to_another_process_is_not_refused_here():
    load = share(range(0)).load("1", 0, LIMIT)
    assert (load.in_flight, load.limit, load.counted) == (0, LIMIT, "the realm")
