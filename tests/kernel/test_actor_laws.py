"""The five laws of an actor hold for one that the loop runs: it is pykka's, with its own reference,
its state is its own, it handles one message at a time, never inside another actor's handler, and it
fails and restarts alone."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pykka
import pytest

from rookery.actors.kernel.actor import FamilyActor
from tests.kernel.tally import FrailEcho, TallyDecider
from tests.kernel.world import World


def actor_behind(reference: Any) -> Any:
    return reference._actor_weakref()


@pytest.fixture
def handled(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, int]]]:
    """The family and the thread of every handled message; fails on a handler inside another."""
    seen: list[tuple[str, int]] = []
    running: list[str] = []
    original = FamilyActor.on_receive

    def on_receive(actor: FamilyActor, message: Any) -> None:
        family = actor._decider.family
        assert not running, f"{family} is handled inside {running}"
        running.append(family)
        seen.append((family, threading.get_ident()))
        try:
            original(actor, message)
        finally:
            running.remove(family)

    monkeypatch.setattr(FamilyActor, "on_receive", on_receive)
    yield seen
    assert seen


def test_each_family_has_an_actor_of_its_own_in_pykkas_registry(world: World):
    node = world.start()
    actors = node.kernel._actors
    assert set(actors.values()) == set(pykka.ActorRegistry.get_all())
    assert len({actor.actor_urn for actor in actors.values()}) == len(actors) == 3
    assert all(isinstance(actor, pykka.ActorRef) and actor.is_alive() for actor in actors.values())


def test_an_actor_holds_only_entities_of_its_family(world: World):
    world.start()
    for number in range(1, 4):
        world.request("add", key=f"k{number}", amount=number)
    world.settle()
    for actor in pykka.ActorRegistry.get_all():
        held: Any = actor_behind(actor)
        assert {entity.id.family for entity in held._entities.values()} <= {held._decider.family}


def test_one_message_is_handled_at_a_time_and_none_inside_another(
    handled: list[tuple[str, int]],
):
    with World(threads=True) as world:
        world.start()
        asked = [world.ask("add", key=f"k{number % 7}", amount=1) for number in range(200)]
        world.until(lambda: all(one.answers for one in asked))
    assert {family for family, _ in handled} >= {"tally", "echo", "node"}
    assert len({thread for _, thread in handled}) == 1, "all on the loop"


def test_an_actor_fails_and_restarts_alone(world: World, monkeypatch: pytest.MonkeyPatch):
    node = world.start([TallyDecider(), FrailEcho()])
    before = dict(node.kernel._actors)
    failing = actor_behind(before["echo"])

    def fail(message: object) -> None:
        raise RuntimeError("a bug of the kernel")

    monkeypatch.setattr(failing, "on_receive", fail)
    world.request("add", amount=1)
    world.until(lambda: world.numbers("echo") == [1])
    after = node.kernel._actors
    assert not before["echo"].is_alive()
    assert {family for family in after if after[family] is not before[family]} == {"echo"}
    assert all(actor.is_alive() for actor in after.values())


def test_a_message_to_an_actor_that_has_ended_is_an_error(world: World):
    node = world.start()
    (echo,) = (actor for family, actor in node.kernel._actors.items() if family == "echo")
    echo.stop(block=False)
    world.settle()
    with pytest.raises(pykka.ActorDeadError):
        echo.tell("anything")
