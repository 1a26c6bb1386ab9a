"""An observed family: its facts are folded into another's states and journaled once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.actors import histories
from rookery.actors.kernel import loader
from rookery.actors.kernel.decider import Decider
from rookery.bus.ports import AppendRequest
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import Command, EntityId, Fact
from rookery.schemas.errors import Failed
from tests.kernel.tally import Added, Ask, SmallDecider, TallyDecider
from tests.kernel.world import SentRequest, World

SNAPSHOT_FACTS = 70
"""Enough for a snapshot to be stored."""
TAKEN_OVER_S = 10.0
"""After this time another node holds the claims of a dead one."""


class Marked(Fact, frozen=True, kw_only=True, tag="watch.marked.v1"):
    """A query was made; these numbers were known then."""

    known: tuple[int, ...]


class Watched(msgspec.Struct, frozen=True):
    observed: tuple[int, ...] = ()
    marks: tuple[tuple[int, ...], ...] = ()


class WatchDecider(SmallDecider):
    """Knows all numbers of the tally and records them on request."""

    family = "watch"
    initial_state = Watched()
    observes = frozenset({"tally"})
    verbs: Mapping[str, type[msgspec.Struct]] = {"mark": Ask, "watched": Ask}
    codec: FactCodec[Any] = FactCodec(Marked)

    def decide(self, state: Any, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        return () if command.verb == "watched" else [Marked(known=state.observed)]

    def evolve(self, state: Any, fact: Any) -> Any:
        return Watched(state.observed, (*state.marks, fact.known))

    def observe(self, state: Any, fact: Any) -> Any:
        return Watched((*state.observed, fact.amount), state.marks)


class FencedWatch(WatchDecider):
    """Its facts are fenced, so they contain every number."""

    def must_be_fenced(self, facts: Sequence[Fact]) -> bool:
        return True


class EagerWatch(WatchDecider):
    """Records every tenth number without a request."""

    reacts_to = frozenset({"tally"})

    def decide(self, state: Any, command: Command[Any], *, now_ms: int) -> Sequence[Fact]:
        if command.verb == "tally" and command.body.amount % 10:
            return ()
        return super().decide(state, command, now_ms=now_ms)


class FrailWatch(WatchDecider):
    """Fails at thirteen, or refuses it by code."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def observe(self, state: Any, fact: Any) -> Any:
        if fact.amount == 13:
            raise self._error
        return super().observe(state, fact)


def started(world: World, watch: Decider | None = None):
    return world.start([TallyDecider(), watch or WatchDecider()])


def watched(asked: SentRequest) -> Watched:
    assert not asked.code, asked.answers[-1].body
    return msgspec.json.decode(asked.answers[-1].body, type=Watched)


def look(world: World) -> Watched:
    return watched(world.request("watched"))


def test_a_committed_fact_is_known_to_the_next_query_and_journaled_once(world: World):
    started(world)
    look(world)
    for amount in (1, 2, 3):
        world.request("add", amount=amount)
        assert look(world).observed[-1] == amount
    assert watched(world.request("mark")) == Watched((1, 2, 3), ((1, 2, 3),))
    assert len(world.stored("watch")) == 1
    assert len(world.stored("tally")) == 3


def test_an_observed_fact_loads_no_entity(world: World):
    node = started(world)
    for amount in (1, 2, 3):
        world.request("add", amount=amount)
    assert node.kernel.entities_cached["watch"] == 0
    assert look(world).observed == (1, 2, 3)


@pytest.mark.parametrize("marks", [1, SNAPSHOT_FACTS], ids=["without snapshot", "with snapshot"])
@pytest.mark.parametrize("fate", ["passivated", "stopped", "crashed"])
def test_a_reloaded_entity_knows_the_same(world: World, marks: int, fate: str):
    node = started(world)
    world.request("add", amount=1)
    for _ in range(marks):
        world.request("mark")
    world.request("add", amount=2)
    before = watched(world.request("mark"))
    world.request("add", amount=3)
    if fate == "passivated":
        node.passivate()
        world.settle()
        assert node.kernel.entities_cached["watch"] == 0
    else:
        leave = node.stop if fate == "stopped" else node.crash
        leave()
        started(world)
        world.pass_s(TAKEN_OVER_S)
    snapshots = world.server.realm("default").snapshots
    kept = world.run(snapshots.load(EntityId("watch", "a"), 1))
    assert (kept is not None) == (marks == SNAPSHOT_FACTS and fate != "crashed")
    assert look(world) == Watched((1, 2, 3), before.marks)
    world.request("add", amount=4)
    assert look(world) == Watched((1, 2, 3, 4), before.marks)


@pytest.mark.parametrize("elsewhere", [0, 40], ids=["at once", "after much else"])
def test_a_reloaded_entity_reads_only_the_newest_messages_of_its_key(
    world: World, monkeypatch: pytest.MonkeyPatch, elsewhere: int
):
    monkeypatch.setattr(histories, "KEY_BYTES_MAX", 0)
    monkeypatch.setattr(loader, "RECENT_MESSAGES", 4)
    monkeypatch.setattr(loader, "RECENT_FACTOR", 2)
    node = started(world)
    numbers = tuple(range(1, SNAPSHOT_FACTS + 1))
    for amount in numbers:
        world.request("add", amount=amount)
        world.request("mark")
    for amount in range(elsewhere):
        world.request("add", "other", amount=amount)
    node.passivate()
    world.settle()
    world.write([Added(amount=99)])
    before = node.journal.scanned
    assert look(world).observed == (*numbers, 99)
    assert node.journal.scanned - before < 20


def test_an_undelivered_fact_is_found_in_the_journal(world: World):
    started(world)
    world.request("add", amount=1)
    assert look(world).observed == (1,)
    world.write([Added(amount=2), Added(amount=3)])
    world.request("add", amount=4)
    assert look(world).observed == (1, 2, 3, 4)


def test_a_fenced_commit_knows_every_committed_fact(world: World):
    started(world, FencedWatch())
    world.request("add", amount=1)
    assert look(world).observed == (1,)
    world.write([Added(amount=2)])
    assert watched(world.request("mark")).marks == ((1, 2),)


def test_a_fact_observed_during_a_commit_counts_after_it(world: World):
    node = started(world)
    look(world)
    node.journal.hold_appends("watch")
    marked = world.ask("mark")
    world.settle()
    world.request("add", amount=1)
    later = world.ask("mark")
    node.release()
    world.until(lambda: later.answers)
    assert watched(marked) == Watched((), ((),))
    assert watched(later) == Watched((1,), ((), (1,)))


def test_a_conflict_loses_nothing_that_was_known(world: World):
    node = started(world)
    for amount in (1, 2):
        world.request("add", amount=amount)
    look(world)
    left = 2

    def write_first(append: AppendRequest) -> None:
        nonlocal left
        if append.entity.family == "watch" and left:
            left -= 1
            world.write_now([Marked(known=(100,))], append.entity)

    node.journal.before_append = write_first
    assert watched(world.request("mark")) == Watched((1, 2), ((100,), (100,), (1, 2)))


def test_a_family_may_observe_and_react_and_does_each_once(world: World):
    node = started(world, EagerWatch())
    for amount in (1, 10, 2, 20):
        world.request("add", amount=amount)
    world.until(lambda: len(world.stored("watch")) == 2)
    expected = Watched((1, 10, 2, 20), ((1, 10), (1, 10, 2, 20)))
    assert look(world) == expected
    node.passivate()
    world.settle()
    assert look(world) == expected
    node.crash()
    started(world, EagerWatch())
    world.pass_s(TAKEN_OVER_S)
    assert look(world) == expected


@pytest.mark.parametrize(
    ("error", "code"),
    [(RuntimeError("thirteen"), "NODE_FAILED"), (Failed("FACT_UNKNOWN", "13"), "FACT_UNKNOWN")],
)
def test_an_unfoldable_fact_stops_only_the_entities_that_observe_it(
    world: World, error: Exception, code: str
):
    started(world, FrailWatch(error))
    look(world)
    world.request("mark")
    world.request("add", amount=13)
    world.request("add", amount=1)
    assert world.request("watched").code == world.request("mark").code == code
    assert world.request("add", amount=2).total.numbers == (13, 1, 2)
    assert watched(world.request("mark", "b")).marks == ((),)
    assert len(world.stored("node")) == 0


@given(st.lists(st.sampled_from(["add", "mark", "add", "mark", "passivate", "rival"]), max_size=12))
def test_any_order_of_events_gives_the_same_state_after_a_reload(steps: list[str]):
    with World() as world:
        node = started(world)
        asked = []
        for number, step in enumerate(steps):
            if step == "passivate":
                node.passivate()
            elif step == "rival":
                world.write([Added(amount=-number)])
            else:
                asked.append(world.ask(step, **({"amount": number} if step == "add" else {})))
        world.until(lambda: all(one.answers for one in asked))
        world.request("add", amount=99)  # A node that missed a rival's fact gets it now.
        before = look(world)
        assert before.observed == tuple(world.numbers())
        for known in before.marks:
            assert known == before.observed[: len(known)]
        node.passivate()
        world.settle()
        assert look(world) == before
