"""A node that was cut off or asleep for longer than its claims live does nothing more.

Goal: nothing that a late owner holds or has sent takes effect here, and its successor misses none
of it. Method: scripts on the virtual clock with delayed acks, cut claims or a sleeping machine;
``tests/chaos/test_cut_off.py`` does the same with real processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rookery.actors.kernel.decider import Effect
from rookery.bus.ports import PARTITIONS
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed
from tests.kernel.tally import Added, EchoDecider, TallyDecider, Total
from tests.kernel.test_partition_ownership import served, shared
from tests.kernel.world import World, called

CLAIM_ENDED_S = 6.5
EVERY = frozenset(range(PARTITIONS))


def rings(world: World) -> list[tuple[str, int]]:
    return [(node, ring.total) for node, ring in world.rings]


def test_a_node_that_slept_acts_on_no_earlier_ack(world: World):
    first = world.start()
    first.journal.hold_acks()
    world.ask("add", "k0", amount=10)
    world.until(lambda: first.journal.held)
    world.sleep_s(CLAIM_ENDED_S)
    first.journal.hold_appends("echo")
    world.run(called(first.journal.release))
    world.run_steps(3)
    assert not first.kernel.partitions.is_certain
    assert rings(world) == []
    assert first.journal.held == 0, "no reaction was decided either"


def test_the_next_owner_acts_on_the_acks_that_a_sleeping_node_missed(world: World):
    first = world.start()
    first.journal.hold_acks()
    world.ask("add", "k0", amount=10)
    world.until(lambda: first.journal.held)
    world.sleep_s(CLAIM_ENDED_S)
    second = world.start()
    first.release()
    world.until(lambda: rings(world) == [("n2", 10)])
    world.until(lambda: world.numbers("echo", "k0") == [10])
    assert served(second) == [PARTITIONS]
    shared(world, 8, 8)


def test_a_node_that_slept_alone_continues_its_own_work(world: World):
    node = world.start()
    node.journal.hold_acks()
    world.ask("add", "k0", amount=10)
    world.until(lambda: node.journal.held)
    world.sleep_s(CLAIM_ENDED_S)
    node.release()
    world.until(lambda: rings(world) == [("n1", 10)])
    world.pass_s(10)
    assert rings(world) == [("n1", 10)]
    assert world.numbers("echo", "k0") == [10]


def test_an_append_that_arrives_after_the_takeover_is_not_stored(world: World):
    first = world.start()
    world.request("add", "k0", amount=1)
    first.journal.hold_appends("tally")
    late = world.ask("add", "k0", amount=10)
    world.until(lambda: first.journal.held)
    first.bus.claims.cut = True
    world.pass_s(CLAIM_ENDED_S)
    second = world.start()
    assert served(second) == [PARTITIONS]
    first.release()
    world.pass_s(1)
    assert world.numbers("tally", "k0") == [1]
    assert late.code == "PARTITION_UNOWNED"
    assert world.request("add", "k0", amount=2).total.numbers == (1, 2)


def test_an_append_that_arrives_before_the_takeover_is_read_by_it(world: World):
    first = world.start()
    first.journal.hold_appends("tally")
    world.ask("add", "k0", amount=10)
    world.until(lambda: first.journal.held)
    first.bus.claims.cut = True
    world.pass_s(CLAIM_ENDED_S)
    first.release()
    world.run_steps(3)
    assert world.numbers("tally", "k0") == [10]
    assert rings(world) == []
    second = world.start()
    world.until(lambda: rings(world) == [("n2", 10)])
    world.until(lambda: world.numbers("echo", "k0") == [10])
    assert served(second) == [PARTITIONS]


def test_certainty_ends_by_the_clock_while_a_heartbeat_hangs(world: World):
    node = world.start()
    node.weather.pause_back_s = 60.0  # All requests are answered, much later.
    world.pass_s(CLAIM_ENDED_S + 2)
    assert not node.kernel.partitions.is_certain
    asked = world.ask("add", "k0", amount=1)
    world.pass_s(1)
    assert {answer.code for answer in asked.answers} <= {"PARTITION_UNOWNED"}
    assert world.numbers("tally", "k0") == []


def test_no_answer_is_waited_for_longer_than_the_claim_lives(world: World):
    """Appends sent before are settled as superseded, so releasing waits for no server."""
    first = world.start()
    first.journal.hold_appends("tally")
    late = world.ask("add", "k0", amount=1)
    world.until(lambda: first.journal.held)
    first.weather.away = True
    world.pass_s(CLAIM_ENDED_S + 2)
    assert not first.kernel.partitions.served
    first.weather.away = False
    world.until(lambda: served(first) == [PARTITIONS])
    world.until(lambda: late.code == "PARTITION_UNOWNED")
    first.release()
    assert world.request("add", "k0", amount=2).total.numbers == (2,)


def test_a_term_begun_unseen_is_noticed_by_the_next_append(world: World):
    first, other = world.start(), world.node()
    world.request("add", "k0", amount=1)
    world.run(other.bus.journal.begin_terms(EVERY))
    asked = world.ask("add", "k0", amount=2)
    world.until(lambda: asked.answers)
    assert asked.code == "PARTITION_UNOWNED"
    world.until(lambda: first.kernel.partitions.is_certain)
    assert world.request("add", "k0", amount=2).total.numbers == (1, 2)


def test_a_term_begun_unseen_is_noticed_before_a_watermark_is_saved(world: World):
    """This node appends nothing meanwhile, and the other node's fact is not missed."""
    first, other = world.start(), world.node()
    world.request("add", "k0", amount=1)
    world.until(lambda: world.numbers("echo", "k0") == [1])
    world.pass_s(6)
    world.run(other.bus.journal.begin_terms(EVERY))
    world.write([Added(amount=9, total=10)], key="k0")
    world.until(lambda: world.numbers("echo", "k0") == [1, 9], patience_s=10)
    world.until(lambda: rings(world) == [("n1", 10)])
    assert served(first) == [PARTITIONS]


def test_effects_of_a_fact_wait_for_a_state_that_knows_it(world: World):
    class Careful(TallyDecider):
        """Its effects depend on the state and not on the fact."""

        def effects(self, state: Total, fact: Any) -> Sequence[Effect]:
            assert fact.amount in state.numbers, "the state is behind its facts"
            return super().effects(state, fact)

    node = world.start([Careful(), EchoDecider()])
    world.request("look", "k0")
    world.write([Added(amount=10, total=10)], key="k0")
    (stored,) = world.stored("tally", "k0")
    node.again(stored)
    world.until(lambda: rings(world) == [("n1", 10)])


def test_two_processes_of_one_name_never_serve_together(world: World):
    first = world.start(name="twin")
    with pytest.raises(Failed, match="NODE_NAME_IN_USE"):
        world.start(name="twin")
    assert served(first) == [PARTITIONS]
    assert world.request("add", "k0", amount=1).total.total == 1


def test_a_name_is_free_when_its_process_is_gone(world: World):
    first = world.start(name="twin")
    world.request("add", "k0", amount=1)
    first.crash()
    second = world.start(name="twin")
    world.until(lambda: served(second) == [PARTITIONS])
    assert world.request("add", "k0", amount=2).total.numbers == (1, 2)


def test_a_process_whose_name_was_taken_while_it_slept_serves_nothing(world: World):
    first = world.start(name="twin")
    world.request("add", "k0", amount=1)
    world.sleep_s(CLAIM_ENDED_S)
    second = world.start(name="twin")
    world.pass_s(10)
    assert (served(first), served(second)) == ([0], [PARTITIONS])
    assert world.request("add", "k0", amount=2).total.numbers == (1, 2)


def test_a_node_records_gained_partitions_before_it_serves_them(world: World):
    first = world.start()
    world.request("add", "k0", amount=1)
    journal = world.server.realm("default").log.page(0, 1 << 30)
    assert journal[0].entity == EntityId("node", first.name)
    assert b'"node.partitions_taken.v1"' in journal[0].body


# --- another journal ------------------------------------------------------------------------------


def test_a_journal_that_is_replaced_is_noticed_and_all_of_the_new_one_is_followed(world: World):
    """Its sequences begin again, below all that the node has seen and stored."""
    node = world.start()
    for number in range(1, 9):
        world.request("add", "k0", amount=number)
    world.pass_s(11)  # A watermark was saved.
    log = world.server.realm("default").log
    log.replace()
    world.write([Added(amount=10, total=10)], key="k0")  # No message is delivered to this node.
    world.until(lambda: world.numbers("echo", "k0") == [10], patience_s=20)
    world.until(lambda: ("n1", 10) in rings(world))
    assert world.request("add", "k0", amount=2).total.numbers == (10, 2)
    assert served(node) == [PARTITIONS]


def test_a_watermark_of_another_journal_hides_no_fact_of_this_one(world: World):
    first = world.start()
    for number in range(1, 9):
        world.request("add", "k0", amount=number)
    assert first.stop()
    world.server.realm("default").log.replace()
    world.write([Added(amount=10, total=10)], key="k0")
    world.start()
    world.until(lambda: world.numbers("echo", "k0") == [10])
    world.until(lambda: ("n2", 10) in rings(world))


def test_a_snapshot_of_another_journal_is_not_used(world: World):
    first = world.start()
    for _ in range(70):
        world.request("add", "k0", amount=1)
    assert first.stop()  # Snapshots are stored.
    world.server.realm("default").log.replace()
    world.start()
    assert world.request("add", "k0", amount=2).total.numbers == (2,)
