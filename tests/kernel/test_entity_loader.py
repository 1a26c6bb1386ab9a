"""Entities are evicted and loaded from the journal, with and without a snapshot."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.actors import histories
from rookery.actors.kernel.entities.entity import Entity
from rookery.bus.memory.storage import MemoryBlobs
from rookery.bus.ports import EntitySnapshot, StoredMessage
from rookery.schemas.codec import encode_facts
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.envelope import EntityId, fill_envelope
from rookery.schemas.errors import Refused
from tests.kernel.tally import Added, EchoDecider, TallyDecider
from tests.kernel.world import World

SNAPSHOT_FACTS = 70
"""Enough for a snapshot to be stored."""


class FullBlobs(MemoryBlobs):
    """A store that rejects blobs of that size."""

    async def put(self, data: bytes) -> str:
        raise Refused("PAYLOAD_TOO_LARGE", f"{len(data)} bytes")


def filled(world: World, key: str = "a") -> tuple[int, ...]:
    for amount in range(SNAPSHOT_FACTS):
        world.ask("add", key, amount=amount)
    return world.request("add", key, amount=1).total.numbers


def snapshot(world: World, key: str = "a", schema: int = 1) -> EntitySnapshot | None:
    snapshots = world.server.realm("default").snapshots
    return world.run(snapshots.load(EntityId("tally", key), schema))


def test_an_idle_entity_is_evicted_and_loaded_equal(world: World):
    node = world.start()
    world.request("add", id="x", amount=1)
    world.request("add", amount=2)
    world.until(lambda: world.numbers("echo") == [1, 2])
    node.passivate()
    world.settle()
    assert node.kernel.entities_cached["tally"] == node.kernel.entities_cached["echo"] == 0
    assert snapshot(world) is None
    assert world.request("add", id="x", amount=1).total.numbers == (1, 2)
    world.request("add", amount=3)
    world.until(lambda: world.numbers("echo") == [1, 2, 3])


def test_a_busy_entity_is_not_evicted(world: World):
    node = world.start()
    node.journal.hold_acks()
    asked = world.ask("add", amount=1)
    world.settle()
    node.passivate()
    world.settle()
    assert node.kernel.entities_cached["tally"] == 1
    node.release()
    world.until(lambda: asked.answers)


def test_entities_are_evicted_after_the_idle_time(world: World):
    node = world.start(passivate_after_ms=60_000)
    world.request("add", amount=1)
    world.pass_s(50)
    assert node.kernel.entities_cached["tally"] == 1
    world.pass_s(20)
    assert node.kernel.entities_cached["tally"] == 0


def test_a_long_history_leaves_a_snapshot_and_comes_back_from_it(
    world: World, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(histories, "KEY_BYTES_MAX", 0)
    node = world.start()
    numbers = filled(world)
    node.passivate()
    world.settle()
    kept = snapshot(world)
    assert kept is not None
    assert world.request("add", amount=9).total.numbers == (*numbers, 9)
    assert kept.sequence in node.journal.read_after


def test_a_stop_leaves_snapshots(world: World):
    first = world.start()
    numbers = filled(world)
    assert first.stop()
    assert snapshot(world) is not None
    world.start()
    assert world.request("look").total.numbers == numbers


def test_a_snapshot_of_another_schema_is_ignored(world: World):
    first = world.start()
    numbers = filled(world)
    first.stop()
    world.start([TallyDecider(schema=2), EchoDecider()])
    assert world.request("look").total.numbers == numbers
    assert snapshot(world, schema=2) is None


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x96\xa0\xa0\x01\x01\x80\x90"])
def test_an_invalid_snapshot_is_ignored(world: World, body: bytes):
    world.start()
    numbers = filled(world)
    world.nodes[0].stop()
    snapshots = world.server.realm("default").snapshots
    nonsense = EntitySnapshot(len(world.stored()) + 1, body)
    world.run(snapshots.save(EntityId("tally", "a"), 1, nonsense))
    world.start()
    assert world.request("add", amount=5).total.numbers == (*numbers, 5)


def test_a_repeat_is_known_after_a_snapshot(world: World):
    node = world.start()
    world.request("add", id="x", amount=1)
    numbers = filled(world)
    node.passivate()
    world.settle()
    assert world.request("add", id="x", amount=1).total.numbers == numbers
    assert world.request("add", id="x", amount=2).code == "IDEMPOTENCY_KEY_REUSED"


def test_a_broken_chain_breaks_one_entity_only(world: World):
    first = world.start()
    world.request("add", amount=1)
    world.request("add", amount=2)
    world.request("add", "b", amount=1)
    first.stop()
    world.forge(
        world.stored()[0].sequence,
        b'[{"type":"tally.added.v1","id":"tally.a.1","amount":1000,"total":1000}]',
    )
    second = world.start()
    assert world.request("look").code == "CHAIN_BROKEN"
    assert world.request("add", amount=3).code == "CHAIN_BROKEN"
    assert world.request("add", "b", amount=2).total.total == 3
    world.submit("add", amount=4)
    world.until(lambda: [letter.code for letter in world.dead()] == ["CHAIN_BROKEN"])
    assert second.stop()


def test_an_entity_is_loaded_after_an_outage(world: World):
    node = world.start()
    node.weather.away = True
    asked = world.ask("add", amount=1)
    world.pass_s(3)
    assert asked.answers == []
    node.weather.away = False
    world.until(lambda: asked.answers)
    assert asked.total.total == 1


def test_a_large_body_is_stored_before_its_fact_and_order_is_preserved(world: World):
    node = world.start()
    padding = "x" * (65 << 10)
    node.weather.away = True
    asked = [world.ask("add", amount=1), world.ask("add", amount=2, padding=padding)]
    asked += [world.ask("add", amount=3)]
    node.weather.away = False
    world.until(lambda: all(one.answers for one in asked))
    assert world.numbers() == [1, 2, 3]
    (digest,) = {fact.blob for fact in world.facts()} - {""}
    blobs = world.server.realm("default").blobs
    assert padding.encode() in world.run(blobs.get(digest))


def test_a_large_body_survives_a_conflict(world: World):
    node = world.start()
    left = [Added(amount=100)]
    node.journal.before_append = lambda append: (
        world.write_now([left.pop()], append.entity) if left else None
    )
    world.request("add", amount=2, padding="x" * (65 << 10))
    assert world.numbers() == [100, 2]
    assert world.facts()[1].blob


def test_a_body_that_cannot_be_stored_is_refused_and_the_entity_continues(world: World):
    node = world.start()
    node.bus.blobs = FullBlobs()
    asked = [world.ask("add", amount=2, padding="x" * (65 << 10)), world.ask("add", amount=3)]
    world.until(lambda: all(one.answers for one in asked))
    assert (asked[0].code, asked[1].total.numbers) == ("PAYLOAD_TOO_LARGE", (3,))


# --- laws ---------------------------------------------------------------------------------------

Batches = list[list[tuple[int, str, int]]]


def messages(batches: Batches) -> list[StoredMessage]:
    """A history: each batch of ``(by, command id, minutes since)`` is one message."""
    entity, stored, last, number, now_ms = EntityId("tally", "k"), [], ZERO_CHAIN, 0, 0
    for sequence, batch in enumerate(batches, 1):
        facts = []
        for amount, command_id, minutes in batch:
            number, now_ms = number + 1, now_ms + 60_000 * minutes
            fact = Added(amount=amount)
            fill_envelope(
                fact, id=f"tally.k.{number}", at_ms=now_ms, session="k", cause=(command_id,),
                cause_digest="" if "/" in command_id else "d", source="law", traceparent="",
            )  # fmt: skip
            facts.append(fact)
        body = encode_facts(facts)
        last = chain(last, body)
        stored.append(StoredMessage(7 * sequence, entity, f"m{sequence}", last, body, now_ms))
    return stored


def folded(snapshot: EntitySnapshot | None, tail: list[StoredMessage]) -> Entity:
    concern = TallyDecider()
    entity = Entity(EntityId("tally", "k"), concern)
    entity.fold(concern, snapshot, tail)
    assert entity.load_error is None
    return entity


def shown(entity: Entity) -> dict[str, Any]:
    names = ("state", "sequence", "chain", "fact_count", "key_sequence", "reacted_counts")
    return {name: getattr(entity, name) for name in names} | {"memory": list(entity.dedup)}


commands = st.tuples(
    st.integers(0, 99),
    st.sampled_from([*"abcdefg", "echo.k.1/tally", "echo.k.2/tally"]),
    st.sampled_from([0, 1, 600, 1_500]),
)


@given(st.lists(st.lists(commands, min_size=1, max_size=4), max_size=12), st.data())
def test_a_snapshot_and_the_facts_after_it_make_what_all_facts_make(batches: Batches, data: Any):
    history = messages(batches)
    cut = data.draw(st.integers(0, len(history)))
    early = folded(None, history[:cut]).snapshot(TallyDecider()) if cut else None
    assert shown(folded(early, history[cut:])) == shown(folded(None, history))


@given(st.lists(st.lists(commands, min_size=1, max_size=3), min_size=1, max_size=6), st.data())
def test_a_message_that_was_changed_or_left_out_is_noticed(batches: Batches, data: Any):
    history = messages(batches)
    place = data.draw(st.integers(0, len(history) - 1))
    if data.draw(st.booleans()) and place < len(history) - 1:
        del history[place]
    else:
        one = history[place]
        history[place] = StoredMessage(
            one.sequence, one.entity, one.message_id, one.chain, one.body + b" ", one.stored_at_ms
        )
    concern = TallyDecider()
    entity = Entity(EntityId("tally", "k"), concern)
    entity.fold(concern, None, history)
    assert entity.load_error is not None
    assert entity.load_error.code == "CHAIN_BROKEN"
