"""Effects start after the ack, once while their node lives, and again if it dies before their
end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rookery.actors.kernel.effect_runner import RETRY_S
from rookery.actors.kernel.runtime import recovery
from rookery.bus.subjects import partition_of
from rookery.schemas.errors import Failed
from rookery.schemas.ids import parse_fact_id
from tests.kernel.tally import Added, Chime, ChimingTally, EchoDecider, Ring, TallyDecider
from tests.kernel.test_partition_ownership import KEYS
from tests.kernel.test_reactions import TAKEN_OVER_S
from tests.kernel.world import World, called


def rings(world: World) -> list[tuple[str, int]]:
    return [(node, ring.total) for node, ring in world.rings]


def test_an_effect_starts_only_after_the_ack(world: World):
    node = world.start()
    node.journal.hold_acks()
    world.ask("add", amount=10)
    world.settle()
    assert (world.numbers(), world.rings) == ([10], [])
    node.release()
    world.until(lambda: rings(world) == [("n1", 10)])


def test_an_instant_effect_is_performed_with_the_ack_and_left_to_the_next_owner_if_it_fails(
    world: World,
):
    def fail(effect: Chime) -> None:
        raise RuntimeError("the bell is broken")

    first = world.start([ChimingTally()], performer=fail)
    first.journal.hold_acks()
    world.ask("add", amount=10)
    world.settle()
    first.release()
    world.request("add", amount=1)
    world.pass_s(30)
    assert first.stop()
    second = world.start([ChimingTally()])
    world.until(lambda: rings(world) == [("n2", 10)])
    second.journal.hold_acks()
    world.ask("add", amount=9)
    world.settle()
    assert rings(world) == [("n2", 10)]
    second.release()
    world.until(lambda: rings(world) == [("n2", 10), ("n2", 20)])


def test_every_command_of_one_message_has_its_own_effects(world: World):
    world.start()
    asked = [world.ask("add", amount=5) for _ in range(6)]
    world.until(lambda: asked[-1].answers)
    world.until(lambda: rings(world) == [("n1", 10), ("n1", 20), ("n1", 30)])


def test_a_running_effect_is_started_again_after_a_crash(world: World):
    first = world.start()
    world.hold_rings = True
    world.request("add", amount=10)
    world.request("add", amount=3)
    world.until(lambda: world.rings)
    first.crash()
    world.hold_rings = False
    world.start()
    world.until(lambda: rings(world) == [("n1", 10), ("n2", 10)])


def test_an_effect_whose_ack_was_lost_is_started_by_the_next_owner(world: World):
    first = world.start()
    first.journal.hold_acks()
    world.ask("add", amount=10)
    world.settle()
    first.crash()
    world.start()
    world.until(lambda: rings(world) == [("n2", 10)])


def test_a_slow_effect_is_found_again_after_any_number_of_facts(world: World):
    first = world.start()
    world.hold_rings = True
    world.request("add", "slow", amount=10)
    world.until(lambda: world.rings)
    for _ in range(10):
        world.request("add", "busy", amount=1)
        world.pass_s(3)
    first.crash()
    second = world.start()
    world.until(lambda: ("n2", 10) in rings(world))
    assert second.journal.scanned < 5, "what was done since is done"


def test_an_effect_recovered_twice_is_found_a_third_time(world: World):
    world.hold_rings = True
    node = world.start()
    world.request("add", "slow", amount=10)
    for name in ("n1", "n2", "n3"):
        world.until(lambda name=name: (name, 10) in rings(world))  # type: ignore[misc]
        world.request("add", "busy", amount=1)
        world.pass_s(9)
        node.crash()
        node = world.start()
    world.until(lambda: ("n4", 10) in rings(world))


def test_an_effect_committed_during_a_recovery_is_started_too(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    class Watchful(TallyDecider):
        observes = frozenset({"echo"})

    first = world.start([Watchful(), EchoDecider()])
    world.hold_rings = True
    world.request("add", amount=10)
    world.request("add", amount=10)
    first.crash()
    monkeypatch.setattr(recovery, "SLICE_MESSAGES", 1)
    monkeypatch.setattr(recovery, "HELD_MAX", 0)
    second = world.node([Watchful(), EchoDecider()])
    second.journal.hold_catch_ups()
    second.start()
    world.pass_s(TAKEN_OVER_S)
    assert "n2" not in dict(rings(world))
    second.release()
    world.until(lambda: {("n2", 10), ("n2", 20)} <= set(rings(world)))


def test_a_watermark_of_the_former_schema_is_used(world: World):
    first = world.start()
    world.request("add", amount=10)
    for _ in range(9):
        world.request("add", "busy", amount=1)
    first.crash()
    world.keep_horizon(schema=1)
    second = world.start()
    world.pass_s(TAKEN_OVER_S)
    assert second.journal.scanned < 5
    assert rings(world) == [("n1", 10)]


def test_an_effect_is_not_started_again_while_its_end_is_in_flight(world: World):
    class Hasty(TallyDecider):
        def effects(self, state: Any, fact: Any) -> Any:
            return super().effects(state, fact) if state.total == fact.total else ()

    node = world.start([Hasty(), EchoDecider()])
    world.request("add", amount=10)
    world.until(lambda: rings(world) == [("n1", 10)])
    node.journal.hold_appends("tally")
    world.ask("add", amount=1)
    world.settle()
    node.again(world.stored("tally", "a")[0])
    world.settle()
    node.release()
    world.until(lambda: world.stored("tally", "a")[1:])
    world.settle()
    assert rings(world) == [("n1", 10)]


def test_a_fact_committed_while_its_key_moves_has_its_effects_on_the_new_owner(world: World):
    first = world.start()
    first.journal.hold_acks()
    for key in KEYS:
        world.ask("add", key, amount=10)
    world.settle()
    second = world.start()
    world.pass_s(9)
    first.release()
    world.pass_s(TAKEN_OVER_S)
    moved = {key for key in KEYS if partition_of(key) in second.kernel.partitions.served}
    rung = {(node, parse_fact_id(ring.key)[1]) for node, ring in world.rings}
    assert {key for node, key in rung if node == "n2"} == moved
    assert {key for node, key in rung if node == "n1"} == set(KEYS) - moved


def test_a_node_away_too_long_saves_no_watermark_over_its_successor(world: World):
    done = asyncio.Event()

    async def ring(effect: Ring) -> None:
        await done.wait()

    first = world.start(performer=ring)
    world.request("add", amount=10)
    world.pass_s(9)
    first.weather.away = True
    world.hold_rings = True
    second = world.start()
    world.until(lambda: rings(world) == [("n2", 10)])
    first.weather.away = False
    world.run(called(done.set))
    first.stop()
    second.crash()
    world.start()
    world.until(lambda: ("n3", 10) in rings(world))


def test_an_effect_that_ended_is_not_started_again_by_a_late_successor(world: World):
    first = world.start()
    world.request("add", amount=10)
    world.pass_s(30)
    first.crash()
    world.start()
    world.pass_s(TAKEN_OVER_S)
    assert world.request("look").total.total == 10
    assert rings(world) == [("n1", 10)]


def test_a_stop_waits_for_running_effects(world: World):
    first = world.start(drain_timeout_s=1.0)
    world.hold_rings = True
    world.request("add", amount=10)
    world.until(lambda: world.rings)
    assert not first.stop()
    world.hold_rings = False
    world.start()
    world.until(lambda: rings(world) == [("n1", 10), ("n2", 10)])


def test_an_effect_is_retried_after_an_outage(world: World):
    tries: list[int] = []

    async def ring(effect: Ring) -> None:
        tries.append(effect.total)
        if len(tries) < 3:
            raise Failed("SERVER_UNREACHABLE", "not now")

    node = world.start(performer=ring)
    world.request("add", amount=10)
    world.until(lambda: tries == [10, 10, 10])
    assert node.stop()


def test_a_conflict_is_retried_at_once_and_another_one_later(world: World):
    tries: list[float] = []

    async def ring(effect: Ring) -> None:
        tries.append(asyncio.get_running_loop().time())
        if len(tries) < 3:
            raise Failed("CONFLICT", "the start was decided again")

    node = world.start(performer=ring)
    world.request("add", amount=10)
    world.until(lambda: len(tries) == 3)
    first, second, third = tries
    assert (second - first, third - second) == pytest.approx((0, RETRY_S))
    assert node.stop()


def test_a_failing_effect_is_left_to_the_next_owner_and_delays_nothing(world: World):
    async def ring(effect: Ring) -> None:
        raise RuntimeError("the bell is broken")

    first = world.start(performer=ring)
    world.request("add", amount=10)
    world.request("add", amount=1)
    world.pass_s(30)
    assert first.stop()
    world.start()
    world.until(lambda: rings(world) == [("n2", 10)])


def test_effects_that_cannot_be_known_after_a_crash_are_left_to_a_version_that_knows(world: World):
    class Forgetful(TallyDecider):
        def effects(self, state: Any, fact: Any) -> Any:
            raise RuntimeError("what was that for?")

    first = world.start()
    world.hold_rings = True
    world.request("add", amount=10)
    first.crash()
    second = world.start([Forgetful()])
    world.pass_s(30)
    assert world.request("look").total.total == 10
    second.stop()
    world.start()
    world.until(lambda: ("n3", 10) in rings(world))


def test_another_nodes_fact_above_the_watermark_has_its_effects_too(world: World):
    first = world.start()
    world.request("add", amount=1)
    first.crash()
    world.write([Added(amount=9, total=10)])
    world.start()
    world.until(lambda: rings(world) == [("n2", 10)])
