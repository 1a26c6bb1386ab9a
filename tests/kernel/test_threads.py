"""The kernel as in production: actors on threads, the bus on its own, clients on many more."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from rookery.actors.metrics import NoMetrics
from rookery.bus.event_loop import LoopThread
from rookery.bus.journal_audit import ChainAudit
from tests.kernel.clients import Patient, SentRequest
from tests.kernel.world import World

KEYS = [f"k{number}" for number in range(7)]


class Restarts(NoMetrics):
    def __init__(self) -> None:
        self.names: list[str] = []

    def restarted(self, actor: str) -> None:
        self.names.append(actor)


@pytest.fixture
def world() -> Iterator[World]:
    with World(threads=True) as made:
        yield made


def test_requests_of_many_threads_are_decided_once_and_in_order_per_thread(world: World):
    node = world.start()

    def ask(thread: int) -> list[SentRequest]:
        return [world.ask("add", KEYS[number % 7], amount=thread) for number in range(70)]

    with ThreadPoolExecutor(6) as pool:
        asked = [one for many in pool.map(ask, range(1, 7)) for one in many]
    world.until(lambda: all(one.answers for one in asked))
    assert node.stop()
    audit = ChainAudit()
    for stored in world.stored():
        audit.add(stored)
    for key in KEYS:
        assert sorted(world.numbers("tally", key)) == sorted(list(range(1, 7)) * 10)
        assert world.numbers("echo", key) == world.numbers("tally", key)
    bells = [fact for key in KEYS for fact in world.facts("tally", key) if fact.total % 10 == 0]
    assert {ring.key for _, ring in world.rings} == {fact.id for fact in bells}
    assert len(world.rings) == len(bells)


def test_an_actor_whose_thread_has_died_has_a_successor(world: World):
    observer = Restarts()
    node = world.start(observer=observer)
    world.request("add", id="x", amount=1)
    node.kernel._mailboxes["tally"].post(object())
    world.until(lambda: observer.names == ["tally"])
    again, more = Patient(world, "a", "x", 1), Patient(world, "a", "y", 2)
    world.until(lambda: again.done and more.done)
    assert world.numbers() == [1, 2]
    assert node.stop()


def test_the_successor_of_a_vanished_node_continues(world: World):
    first = world.start()
    first.journal.hold_appends("echo")
    for amount in (1, 2, 3):
        world.request("add", amount=amount)
    first.crash()
    second = world.node(neighbour_is_dead=True).start()
    world.until(lambda: world.numbers("echo") == [1, 2, 3])
    assert world.request("look").total.numbers == (1, 2, 3)
    assert second.stop()


def test_work_for_a_loop_that_was_closed_is_dropped():
    loop = LoopThread()
    loop.close()
    loop.call_soon(print, "nobody hears this")
