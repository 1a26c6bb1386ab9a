"""A failure of the kernel itself: an actor dies, and its successor continues from the journal."""

from __future__ import annotations

from tests.kernel.clients import Patient
from tests.kernel.tally import TallyDecider
from tests.kernel.world import Node, World


def kill(node: Node, family: str = "tally") -> None:
    """A message that no actor knows."""
    node.kernel._mailboxes[family].post(object())


def test_a_failed_actor_has_a_successor_that_knows_everything(world: World):
    node = world.start()
    world.request("add", id="x", amount=1)
    kill(node)
    world.settle()
    assert node.kernel.actors_alive["tally"]
    assert world.request("add", id="x", amount=1).total.numbers == (1,)
    assert world.request("add", amount=2).total.numbers == (1, 2)


def test_a_successor_decides_the_commands_of_its_failed_actor(world: World):
    node = world.start()
    node.journal.hold_acks()
    for amount in (1, 2, 3):
        world.submit("add", amount=amount)
    world.settle()
    kill(node)
    world.settle()
    node.release()
    world.until(lambda: world.numbers() == [1, 2, 3])
    world.until(lambda: world.numbers("echo") == [1, 2, 3])
    assert world.request("look").total.numbers == (1, 2, 3)


def test_reactions_and_effects_of_commits_in_flight_survive_an_actor_failure(world: World):
    node = world.start()
    node.journal.hold_acks()
    patient = Patient(world, "a", "x", 10)
    world.settle()
    kill(node)
    kill(node, "echo")
    world.settle()
    node.release()
    world.until(lambda: world.numbers("echo") == [10])
    world.until(lambda: world.rings)
    patient.insist()
    world.until(lambda: patient.done)
    assert (patient.asked.total.numbers, world.numbers()) == ((10,), [10])


def test_reactions_that_waited_in_a_failed_actor_happen(world: World):
    node = world.start()
    node.journal.hold_appends("echo")
    for amount in (1, 2, 3):
        world.request("add", amount=amount)
    kill(node, "echo")
    world.settle()
    node.release()
    world.until(lambda: world.numbers("echo") == [1, 2, 3])


def test_a_rule_that_fails_at_first_sight_of_a_key_does_not_kill_its_actor_for_ever(world: World):
    class Shy(TallyDecider):
        def initial(self, key: str):
            if key == "thirteen":
                raise RuntimeError("thirteen")
            return super().initial(key)

    world.start([Shy()])
    asked = world.ask("add", "thirteen")
    world.pass_s(3)
    assert world.request("add", "b").total.total == 1
    assert asked.code == "NODE_FAILED"
