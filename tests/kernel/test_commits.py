"""Commands are decided in order, answered when durable, and decided again after a conflict."""

from __future__ import annotations

import pytest

from rookery.actors import histories
from rookery.actors.metrics import NoMetrics
from rookery.bus.ports import AppendRequest
from rookery.schemas.envelope import EntityId
from tests.kernel.tally import Added, TallyDecider
from tests.kernel.world import Node, World

LONG = 70
"""Facts enough for a snapshot."""


def rival_at(world: World, node: Node, times: int, family: str = "tally") -> None:
    """Let another writer append first, this many times."""
    left = times

    def write_first(append: AppendRequest) -> None:
        nonlocal left
        if append.entity.family == family and left:
            left -= 1
            world.write_now([Added(amount=100, total=100)], append.entity)

    node.journal.before_append = write_first


def test_nothing_is_answered_before_its_fact_is_durable(world: World):
    node = world.start()
    node.journal.hold_appends()
    asked = world.ask("add", amount=5)
    world.settle()
    assert (asked.answers, world.numbers()) == ([], [])
    node.release()
    world.until(lambda: asked.answers)
    assert (asked.total.total, world.numbers()) == (5, [5])


def test_nothing_is_answered_before_the_ack_is_here(world: World):
    node = world.start()
    node.journal.hold_acks()
    asked = world.ask("add", amount=10)
    world.settle()
    assert (asked.answers, world.rings, world.numbers()) == ([], [], [10])
    node.release()
    world.until(lambda: asked.answers and world.rings)


def test_replies_based_on_undurable_facts_wait_for_them(world: World):
    node = world.start()
    node.journal.hold_acks()
    closed, refused, looked = world.ask("close"), world.ask("add"), world.ask("look")
    world.settle()
    assert closed.answers == refused.answers == looked.answers == []
    node.release()
    world.until(lambda: looked.answers)
    assert (closed.total.closed, refused.code, looked.total.closed) == (
        True,
        "GUARD_REJECTED",
        True,
    )


def test_a_repeat_and_a_reuse_on_top_of_undurable_facts_wait_for_them(world: World):
    node = world.start()
    node.journal.hold_acks()
    asked = [world.ask("add", id="x", amount=amount) for amount in (1, 1, 2)]
    world.settle()
    assert [one.answers for one in asked] == [[], [], []]
    node.release()
    world.until(lambda: all(one.answers for one in asked))
    assert [one.code for one in asked] == ["", "", "IDEMPOTENCY_KEY_REUSED"]
    assert world.numbers() == [1]


def test_commands_that_come_while_an_append_is_under_way_are_decided_together_in_order(
    world: World,
):
    node = world.start()
    node.journal.hold_acks()
    world.ask("add", amount=1)
    world.settle()
    later = [world.ask("add", amount=amount) for amount in (2, 3, 4)]
    world.settle()
    assert len(world.stored("tally")) == 1
    node.release()
    world.until(lambda: all(asked.answers for asked in later))
    assert [asked.total.total for asked in later] == [3, 6, 10]
    assert len(world.stored("tally")) == 2


def test_entities_do_not_wait_for_each_other(world: World):
    node = world.start()
    node.journal.hold_acks()
    world.ask("add", "a")
    world.settle()
    node.journal.hold_acks()
    world.ask("add", "b")
    world.settle()
    assert node.journal.held == 2


def test_a_repeated_command_is_answered_and_not_decided_again(world: World):
    world.start()
    world.request("add", id="x", amount=2)
    world.request("add", amount=3)
    assert world.request("add", id="x", amount=2).total.numbers == (2, 3)
    assert world.numbers() == [2, 3]


def test_a_repeated_command_is_known_after_a_restart(world: World):
    node = world.start()
    world.request("add", id="x", amount=2)
    node.stop()
    world.start()
    assert world.request("add", id="x", amount=2).total.numbers == (2,)


def test_a_reused_id_is_refused(world: World):
    world.start()
    world.request("add", id="x", amount=2)
    assert world.request("add", id="x", amount=3).code == "IDEMPOTENCY_KEY_REUSED"
    assert world.request("add", "b", id="x", amount=3).total.total == 3
    assert world.numbers() == [2]


def test_a_conflict_reloads_and_decides_again(world: World):
    node = world.start()
    world.request("add", amount=1)
    rival_at(world, node, 1)
    asked = [world.ask("add", amount=amount) for amount in (2, 3)]
    world.until(lambda: all(one.answers for one in asked))
    assert [one.total.total for one in asked] == [103, 106]
    assert world.numbers() == [1, 100, 2, 3]


def test_after_a_conflict_only_what_follows_a_long_history_is_read(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    """And what the actor had still counts as unsaved: a snapshot of it is stored later."""
    monkeypatch.setattr(histories, "KEY_BYTES_MAX", 0)
    node = world.start()
    for amount in range(LONG):
        world.request("add", amount=amount)
    node.journal.read_after.clear()
    end = world.run(node.bus.journal.last(EntityId("tally", "a"))).sequence
    rival_at(world, node, 1)
    assert world.request("add", amount=5).total.numbers == (*range(LONG), 100, 5)
    assert node.journal.read_after == [end]
    node.passivate()
    world.settle()
    snapshots = world.server.realm("default").snapshots
    assert world.run(snapshots.load(EntityId("tally", "a"), 1)) is not None


def test_three_conflicts_are_survived(world: World):
    rival_at(world, world.start(), 3)
    assert world.request("add", amount=5).total.total == 305


def test_after_a_fourth_conflict_the_client_gets_an_error(world: World):
    rival_at(world, world.start(), 4)
    assert world.request("add", amount=5).code == "CONFLICT"
    assert world.numbers() == [100] * 4
    assert world.request("add", amount=5).total.total == 405


def test_commands_decided_on_a_lost_unit_of_work_are_decided_again(world: World):
    node = world.start()
    rival_at(world, node, 1)
    asked = [
        world.ask("add", id="x", amount=1),
        world.ask("add", id="x", amount=1),
        world.ask("look"),
    ]
    world.until(lambda: all(one.answers for one in asked))
    assert [len(one.answers) for one in asked] == [1, 1, 1]
    assert [one.total.total for one in asked] == [101, 101, 101]


def test_a_fenced_commit_reads_the_other_families_first(world: World):
    node = world.start()
    world.request("add", amount=5)
    world.until(lambda: world.numbers("echo"))
    assert world.request("close").total.closed
    closing = [append for append in node.journal.sent if b"closed" in append.body]
    began = world.stored()[0].sequence
    assert [append.fence for append in closing] == [began, began + 1]


def test_a_fenced_commit_sees_the_facts_of_other_families(world: World):
    world.start()
    world.request("add", amount=5)
    world.until(lambda: world.numbers("echo"))
    world.write([Added(amount=7, total=12)])
    hushed = world.request("hush")
    assert hushed.total.numbers == (5, 7)
    assert world.facts("echo")[-1].total == 12


def test_a_fenced_commit_fails_when_other_families_keep_writing(world: World):
    node = world.start()
    world.request("echo")

    def always(append: AppendRequest) -> None:
        if b"hushed" in append.body:
            world.write_now([Added(amount=1, total=1)], append.entity._replace(family="tally"))

    node.journal.before_append = always
    assert world.request("hush").code == "CONFLICT"


def test_a_message_the_server_rejects_is_refused_and_the_entity_goes_on(world: World):
    node = world.start()
    node.journal.bytes_max = 2_000
    world.request("add", amount=1)
    assert world.request("add", id="x" * 100, amount=2, mode="passive").total.total == 3
    node.journal.bytes_max = 100
    assert world.request("add", amount=3).code == "PAYLOAD_TOO_LARGE"
    node.journal.bytes_max = 2_000
    assert world.request("add", amount=4).total.numbers == (1, 2, 4)


def test_commands_of_a_rejected_message_are_decided_one_by_one(world: World):
    node = world.start()
    node.journal.bytes_max = 1_000
    asked = [world.ask("add", amount=1) for _ in range(9)]
    world.until(lambda: all(one.answers for one in asked))
    assert [one.code for one in asked] == [""] * 9


def test_many_commands_become_messages_of_a_bounded_size(world: World):
    world.start()
    asked = [world.ask("add", amount=1) for _ in range(2_500)]
    world.until(lambda: asked[-1].answers)
    assert [one.total.total for one in asked] == list(range(1, 2_501))
    assert max(len(one.body) for one in world.stored("tally")) < 512 << 10


def test_a_repeat_of_a_refused_command_is_decided_again(world: World):
    world.start()
    world.request("close")
    assert (
        world.request("add", id="x").code == world.request("add", id="x").code == "GUARD_REJECTED"
    )


def test_every_command_is_counted_once_by_its_outcome(world: World):
    class Counting(NoMetrics):
        def __init__(self) -> None:
            self.outcomes: list[tuple[str, str]] = []

        def command(self, verb: str, outcome: str, seconds: float) -> None:
            self.outcomes.append((verb, outcome))

    observer = Counting()
    node = world.start([TallyDecider()], observer=observer)
    observer.outcomes.clear()  # The node has recorded its partitions.
    rival_at(world, node, 1)
    for verb in ("add", "add", "close", "add", "look"):
        asked = world.ask(verb, id="x" if verb == "add" else "")
    world.until(lambda: asked.answers)
    world.request("add", "b", id="y")
    world.request("add", "b", id="y")
    world.request("look", "b")
    world.request("dance")
    assert sorted(observer.outcomes) == [
        ("add", "committed"), ("add", "committed"), ("add", "repeated"), ("add", "repeated"),
        ("add", "repeated"), ("close", "committed"), ("look", "unchanged"), ("look", "unchanged"),
    ]  # fmt: skip
