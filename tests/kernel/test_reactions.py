"""Reactions to another family's facts: each fact once, in order, whichever node dies in between."""

from __future__ import annotations

import pytest

from rookery.actors.kernel.committer import FactRouter
from rookery.actors.kernel.effect_runner import Watermark
from rookery.actors.kernel.entities.entity import Entity, PendingCommand, ReactionSource
from rookery.actors.kernel.entities.mailbox import FactsCommitted
from rookery.bus.ports import AppendRequest, StoredMessage
from rookery.schemas.codec import fact_tag
from rookery.schemas.envelope import Command, EntityId
from rookery.schemas.errors import Failed
from tests.kernel.tally import (
    Added,
    Closed,
    EchoDecider,
    FrailEcho,
    Heard,
    PickyEcho,
    SelectiveEcho,
    TallyDecider,
)
from tests.kernel.world import World

TAKEN_OVER_S = 10.0
"""After this time another node holds the claims of a dead one."""


def quarantined(world: World) -> list[str]:
    return [fact.command_id for node in world.nodes for fact in world.facts("node", node.name)]


def test_reactions_happen_once_and_in_order(world: World):
    world.start()
    for amount in range(1, 6):
        world.ask("add", amount=amount)
    world.request("add", amount=6)
    world.until(lambda: len(world.numbers("echo")) == 6)
    world.pass_s(30)
    assert world.numbers("echo") == [1, 2, 3, 4, 5, 6]


def test_undelivered_facts_are_found_in_the_journal(world: World):
    world.start()
    world.request("add", amount=1)
    world.write([Added(amount=2), Added(amount=3)])
    assert world.request("add", amount=4).total.numbers == (1, 2, 3, 4)
    world.until(lambda: world.numbers("echo") == [1, 2, 3, 4])


@pytest.mark.parametrize("is_held", [True, False])
def test_facts_that_a_decider_passes_over_wake_no_actor_and_hide_no_later_one(
    world: World, is_held: bool
):
    """``close`` is the fourth fact of its entity and the first that matters."""
    node = world.start([TallyDecider(), SelectiveEcho()])
    if is_held:
        world.request("hush")
    reads = node.journal.scanned
    for number in (1, 2, 3):
        world.request("add", amount=number)
    assert world.numbers("echo") == []
    world.request("close")
    world.until(lambda: world.numbers("echo") == [1])
    assert node.journal.scanned == reads
    world.request("close")
    world.settle()
    assert world.numbers("echo") == [1]


def missed(*facts: str, after: int = 0) -> FactsCommitted | None:
    """A message of the tally, read for a decider that reacts only to its end."""
    body = f"[{','.join(facts)}]".encode()
    stored = StoredMessage(7, EntityId("tally", "a"), "m", "", body, 0)
    router = FactRouter([], {}, Watermark())
    return router.read_message(SelectiveEcho(), stored, TallyDecider.codec, after)


UNREADABLE = f'{{"type":"{fact_tag(Added)}","id":"tally.a.3","amount":"no number"}}'
CLOSED = f'{{"type":"{fact_tag(Closed)}","id":"tally.a.4","at_ms":"no time"}}'
NEWER = UNREADABLE.replace(".v1", ".v9")


def test_only_missed_facts_that_matter_are_decoded():
    passed = missed(UNREADABLE)
    assert passed is not None
    assert (passed.numbered, passed.first, passed.last) == ([], 3, 3)
    handled = missed(UNREADABLE, CLOSED, after=4)
    assert handled is not None
    assert (handled.numbered, handled.first, handled.last) == ([], 3, 4)
    with pytest.raises(Failed, match="FACT_INVALID"):
        missed(UNREADABLE, CLOSED, after=3)
    with pytest.raises(Failed, match="FACT_VERSION_UNSUPPORTED"):
        missed(NEWER)
    assert missed() is None


def test_facts_that_are_passed_over_count_although_another_family_is_waited_for():
    """A reaction of their own family keeps them waiting: it may be older."""
    entity = Entity(EntityId("echo", "a"), EchoDecider())
    waiting = Command(verb="other", key="a", id="r", body=Added(amount=1))
    entity.reactions.append(PendingCommand(waiting, "", 0.0, source=source_of("other")))
    entity.pass_over("tally", 1, 4, 9)
    assert entity.reacted_counts == {"tally": 4}
    entity.reactions.append(PendingCommand(waiting, "", 0.0, source=source_of("tally")))
    entity.pass_over("tally", 5, 6, 10)
    assert entity.reacted_counts == {"tally": 4}


def source_of(family: str) -> ReactionSource:
    return ReactionSource(family, 1, 8, 0, 1)


def test_a_conflict_does_not_make_a_reaction_happen_twice_or_never(world: World):
    node = world.start()
    left = 6

    def write_first(append: AppendRequest) -> None:
        nonlocal left
        if append.entity.family == "echo" and left:
            left -= 1
            world.write_now([Heard(amount=100)], append.entity)

    node.journal.before_append = write_first
    world.request("add", amount=1)
    world.request("add", amount=2)
    world.until(lambda: world.numbers("echo") == [100] * 6 + [1, 2])


def test_a_refused_reaction_does_not_delay_later_ones(world: World):
    world.start([TallyDecider(), PickyEcho()])
    for amount in (1, 13, 2):
        world.request("add", amount=amount)
    world.until(lambda: world.numbers("echo") == [1, 2])


def test_a_failing_reaction_is_set_aside_and_later_ones_continue(world: World):
    world.start([TallyDecider(), FrailEcho()])
    for amount in (1, 13, 2):
        world.request("add", amount=amount)
    world.until(lambda: world.numbers("echo") == [1, 2])
    world.until(lambda: quarantined(world) == ["tally.a.2/echo"])


def test_a_reaction_that_cannot_be_stored_does_not_delay_later_ones(world: World):
    node = world.start([TallyDecider(), PickyEcho()])
    world.request("echo")
    node.journal.hold_acks()
    world.ask("add", amount=1)
    world.settle()
    node.journal.bytes_max = 100
    node.release()
    world.settle()
    node.journal.bytes_max = 1 << 20
    world.request("add", amount=2)
    world.until(lambda: world.numbers("echo") == [2])


@pytest.mark.parametrize("fate", ["stopped", "crashed"])
def test_the_next_owner_decides_a_reaction_that_a_stopped_node_left(world: World, fate: str):
    first = world.start(drain_timeout_s=1.0)
    world.request("add", amount=1)
    world.until(lambda: world.numbers("echo") == [1])
    first.journal.hold_appends("echo")
    world.request("add", amount=2)
    world.request("add", amount=3)
    assert world.numbers("echo") == [1]
    if fate == "stopped":
        assert not first.stop()
    else:
        first.crash()
    world.start()
    world.until(lambda: world.numbers("echo") == [1, 2, 3])


def test_a_stored_reaction_without_an_ack_is_not_repeated(world: World):
    first = world.start()
    first.journal.hold_acks()
    world.ask("add", amount=1)
    world.settle()
    first.release()
    first.journal.hold_acks()
    world.until(lambda: world.numbers("echo") == [1])
    first.crash()
    world.start()
    world.pass_s(TAKEN_OVER_S)
    world.request("add", amount=2)
    world.until(lambda: world.numbers("echo") == [1, 2])


def test_a_reaction_is_found_again_however_long_ago_its_fact_was_stored(world: World):
    first = world.start()
    first.journal.hold_appends("echo")
    world.request("add", "slow", amount=1)
    first.journal.hold_appends("slow")
    for _ in range(20):
        world.request("add", "busy", amount=1)
        world.pass_s(2)
    first.crash()
    world.start()
    world.until(lambda: world.numbers("echo", "slow") == [1])


def test_a_successor_reads_only_what_may_be_left_to_do(world: World):
    first = world.start()
    for amount in range(50):
        world.request("add", amount=amount)
    world.pass_s(30)
    world.request("add", amount=50)
    first.crash()
    second = world.start()
    world.pass_s(TAKEN_OVER_S)
    assert world.request("add", amount=51)
    world.until(lambda: len(world.numbers("echo")) == 52)
    assert second.journal.scanned < 10


def test_an_unreadable_fact_stops_only_the_entities_that_react_to_it(world: World):
    world.start()
    world.request("add", amount=1)
    world.until(lambda: world.numbers("echo") == [1])
    world.write([Heard(amount=7)])  # Not a fact of the tally.
    world.request("add", "b", amount=1)
    assert world.request("hush").code == "FACT_UNKNOWN"
    assert world.request("hush", "b").total.numbers == (1,)
