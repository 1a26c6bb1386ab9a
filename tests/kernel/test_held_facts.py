"""Facts that may wait are held for a moment: their effects start at once, and the entity's next
facts are committed with them. A command is answered only when everything before it is durable."""

from __future__ import annotations

from rookery.bus.ports import AppendRequest
from tests.kernel.tally import Add, Closed, PatientEcho, TallyDecider, Total
from tests.kernel.world import Node, World


def start(world: World) -> Node:
    return world.start([TallyDecider(), PatientEcho()])


def hold(world: World, amount: int = 7) -> None:
    """Let the echo hold a fact: its effect has started."""
    before = len(world.rings)
    world.request("add", amount=amount)
    world.until(lambda: len(world.rings) > before)


def messages(world: World) -> list[list[str]]:
    return [
        [type(fact).__name__ for fact in PatientEcho.codec.decode(stored.body)]
        for stored in world.stored("echo")
    ]


def test_a_held_fact_is_committed_with_the_next_one(world: World):
    start(world)
    world.on_ring = lambda _: None if world.stored("echo") else world.ask("hush") and None
    hold(world)
    world.settle()
    assert messages(world) == [["Heard", "Hushed"]]


def test_a_held_fact_is_committed_alone_after_a_moment(world: World):
    start(world)
    hold(world)
    assert messages(world) == [], "its effect starts before"
    world.pass_s(1.5)
    assert messages(world) == [["Heard"]]
    assert world.request("hush").code == ""
    assert messages(world) == [["Heard"], ["Hushed"]]
    assert len(world.rings) == 1


def test_a_busy_loop_gets_a_few_turns_before_a_held_fact_is_committed_alone(world: World):
    start(world)

    def late_turn(turns: int) -> None:
        if turns:
            world._loop.call_soon(late_turn, turns - 1)
        else:
            world.ask("hush")

    world.on_ring = lambda _: world._loop.call_later(1.0, late_turn, 3) and None
    hold(world)  # For a second, at whose end the next command is some turns away.
    world.pass_s(1.5)
    assert messages(world) == [["Heard", "Hushed"]]


def test_a_reply_waits_for_the_held_facts_it_is_based_on(world: World):
    node = start(world)
    world.request("add", amount=5)
    hold(world)
    node.journal.hold_acks()
    asked = world.ask("echo")
    world.settle()
    assert asked.answers == []
    node.release()
    world.until(lambda: asked.answers)
    assert asked.total.numbers == (5, 7)
    assert messages(world) == [["Heard", "Heard"]]


def test_a_crash_loses_no_held_fact_and_no_effect_of_it(world: World):
    node = start(world)
    hold(world)
    assert messages(world) == []
    node.crash()
    start(world)
    world.until(lambda: messages(world) == [["Heard"]])
    world.until(lambda: [name for name, _ in world.rings].count("n2") >= 1)


def test_held_facts_are_decided_again_after_a_conflict(world: World):
    node = start(world)

    def write_first(append: AppendRequest) -> None:
        if append.entity.family == "echo":
            node.journal.before_append = lambda _: None
            world.write_now([Closed()], append.entity._replace(family="tally"))

    hold(world)
    node.journal.before_append = write_first
    asked = world.ask("hush")
    world.until(lambda: asked.answers)
    assert asked.code == ""
    assert len(world.facts("tally")) == 2, "another node wrote first"
    assert world.numbers("echo") == [7]


def test_an_actor_that_holds_facts_is_not_at_rest(world: World):
    node = start(world)
    hold(world)
    node.passivate()
    assert node.stop(), "the node waits for the commit"
    assert messages(world) == [["Heard"]]


def test_an_executor_gets_its_reply_while_its_facts_wait(world: World):
    node = start(world)
    totals = [
        world.run(node.kernel.ask("echo", "a", Add(amount=amount), Total)).total
        for amount in (1, 2, 3)
    ]
    assert totals == [1, 3, 6]
    assert messages(world) == []
    assert world.request("hush").total.total == 6
    assert messages(world) == [["Heard", "Heard", "Heard", "Hushed"]]


def test_facts_wait_no_longer_because_others_join_them(world: World):
    node = start(world)
    for _ in range(15):
        world.run(node.kernel.ask("echo", "a", Add(amount=1), Total))
        world.pass_s(0.1)
    assert len(messages(world)) == 1, "committed a second after the first one"
