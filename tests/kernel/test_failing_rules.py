"""A rule raises what it must not raise: only its command is set aside."""

from __future__ import annotations

import pytest

from tests.kernel.tally import EchoDecider, FrailTally
from tests.kernel.world import Node, World

BEFORE_COMMIT = ("decide", "evolve", "answer", "fenced", "effects")


def frail(world: World, rule: str) -> Node:
    return world.start([FrailTally(rule), EchoDecider()])


@pytest.mark.parametrize("rule", BEFORE_COMMIT)
def test_a_failing_rule_sets_its_command_aside_and_the_others_go_on(world: World, rule: str):
    node = frail(world, rule)
    asked = [world.ask("add", amount=amount) for amount in (1, 13, 2)]
    asked += [world.ask("add", "b", amount=7)]
    world.until(lambda: all(one.answers for one in asked))
    assert [one.code for one in asked] == ["", "COMMAND_QUARANTINED", "", ""]
    assert world.request("add", amount=3).total.numbers == (1, 2, 3)
    assert [(letter.verb, letter.code) for letter in world.dead()] == [
        ("add", "COMMAND_QUARANTINED")
    ]
    world.until(lambda: world.facts("node", node.name))
    (fact,) = world.facts("node", node.name)
    assert (fact.command_id, fact.dead_letter) == (asked[1].request.id, world.dead()[0].number)
    assert [len(one.answers) for one in asked] == [1, 1, 1, 1]
    assert node.stop()


def test_a_failing_key_check_sets_its_command_aside(world: World):
    node = frail(world, "check_key")
    assert world.request("add", "thirteen").code == "COMMAND_QUARANTINED"
    assert world.request("add", "b").total.total == 1
    world.until(lambda: world.facts("node", node.name))
    assert len(world.dead()) == 1


@pytest.mark.parametrize("rule", [rule for rule in BEFORE_COMMIT if rule != "answer"])
def test_a_failing_command_from_the_inbox_does_not_block_its_partition(world: World, rule: str):
    frail(world, rule)
    for amount in (1, 13, 2):
        world.submit("add", amount=amount)
    world.until(lambda: world.numbers() == [1, 2])
    assert [letter.code for letter in world.dead()] == ["COMMAND_QUARANTINED"]


def test_a_failing_command_is_tried_three_times_each_time_from_the_journal(world: World):
    class Counting(FrailTally):
        tries = 0

        def _fail(self, rule: str, unlucky: bool) -> None:
            self.tries += unlucky and rule == "decide"
            super()._fail(rule, unlucky)

    concern = Counting("decide")
    world.start([concern])
    assert world.request("add", amount=13).code == "COMMAND_QUARANTINED"
    assert concern.tries == 3


def test_a_dead_letter_can_be_sent_again_once_the_rule_is_mended(world: World):
    node = frail(world, "decide")
    world.request("add", amount=13)
    node.stop()
    world.start()
    world.retry_dead(world.dead()[0].number)
    world.until(lambda: world.numbers() == [13])
    assert world.dead() == []


def test_counting_states_may_fail_without_consequence(world: World):
    frail(world, "note")
    assert world.request("add", amount=13).total.total == 13
    assert world.request("add", amount=2).total.numbers == (13, 2)


def test_an_entity_that_cannot_be_folded_answers_with_the_reason(world: World):
    node = world.start()
    world.request("add", amount=13)
    world.request("add", "b", amount=1)
    node.stop()
    frail(world, "evolve")
    assert world.request("look").code == "NODE_FAILED"
    assert world.request("add", "b", amount=2).total.total == 3


def test_reactions_of_an_unfoldable_entity_are_left_to_another_version(world: World):
    class Stubborn(EchoDecider):
        def evolve(self, state, fact):
            raise RuntimeError("never heard of it")

    first = world.start()
    world.request("add", amount=1)
    world.until(lambda: world.numbers("echo"))
    first.journal.hold_appends("echo")
    world.request("add", amount=2)
    first.crash()
    second = world.start([FrailTally(""), Stubborn()])
    world.pass_s(30)
    second.stop()
    world.start()
    world.until(lambda: world.numbers("echo") == [1, 2])


def test_a_snapshot_that_cannot_be_made_or_read_costs_nothing_but_time(world: World):
    for rule in ("dump", "load"):
        node = world.start([FrailTally(rule), EchoDecider()])
        key = f"key-{rule}"
        for amount in [13, *range(70)]:
            world.ask("add", key, amount=amount)
        world.request("add", key)
        node.passivate()
        world.pass_s(1)
        assert world.request("look", key).total.numbers == (13, *range(70), 1)
        node.stop()
