"""The own tail: the end of the journal that a node knows without a query."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from rookery.bus.journal.appender import MESSAGES_MAX, OwnTail
from rookery.bus.ports import Appended, Conflict
from rookery.schemas.envelope import EntityId
from tests.bus.journals import Writer, commit, session
from tests.bus.realms import JetStreamRealm

TURN = EntityId("turn", "a")
FAMILIES = ("session", "turn", "tool")


@pytest.mark.parametrize("seed", range(20))
def test_the_own_tail_is_never_wrong_whatever_others_write_and_whichever_acks_are_lost(seed: int):
    """Goal: the tail is never wrong. Method: this node and other writers append, some acks of this
    node are lost; after each message every answer of the tail is compared with the journal."""
    chance, own = Random(seed), OwnTail()
    journal: list[EntityId] = []
    certain = 0
    for _ in range(60):
        entity = EntityId(chance.choice(FAMILIES), "a")
        journal.append(entity)
        if chance.random() < 0.8:
            own.add(len(journal), entity)
        elif chance.random() < 0.2:
            own.clear()
        for after in range(len(journal) + 1):
            through = chance.randint(0, len(journal) + 1)
            asked = EntityId(chance.choice(FAMILIES), "a")
            if own.has_no_message_of(asked, after, through):
                certain += 1
                assert through <= len(journal)
                assert asked not in journal[after:through]
    assert certain


def test_the_own_tail_answers_all_queries_above_our_first_message_without_other_writers():
    own = OwnTail()
    for sequence in range(10, 20):
        own.add(sequence, session(f"s{sequence}"))
    assert own.has_no_message_of(TURN, 9, 19)
    assert not own.has_no_message_of(TURN, 8, 19)
    assert not own.has_no_message_of(TURN, 9, 20)
    assert not own.has_no_message_of(session("s15"), 9, 19)
    assert own.has_no_message_of(session("s15"), 15, 19)


def test_the_own_tail_has_a_limit():
    own = OwnTail()
    for sequence in range(1, MESSAGES_MAX + 2):
        own.add(sequence, session("a"))
    assert own.has_no_message_of(TURN, 1, MESSAGES_MAX + 1)
    assert not own.has_no_message_of(TURN, 0, MESSAGES_MAX + 1)


def test_a_fenced_append_queries_only_what_another_writer_may_have_written(
    jetstream: JetStreamRealm,
):
    async def scenario() -> None:
        asked: list[Any] = []
        async with jetstream.bus() as bus, jetstream.bus() as other, jetstream.stock() as stock:
            await stock.subscribe("$JS.API.STREAM.MSG.GET.>", cb=_recording(asked))
            await stock.flush()
            writer, journal = Writer(), bus.journal
            await writer.write(journal, TURN)
            (seen,) = await writer.write(journal, session("a"))
            known = writer.next(TURN, fence=seen)
            assert await commit(journal, [known]) == [Appended(known, 3)]
            writer.learn([Appended(known, 3)])
            await stock.flush()
            assert not asked

            await writer.write(other.journal, session("b"))
            (seen,) = await writer.write(journal, session("a"))
            unknown = writer.next(TURN, fence=seen)
            assert await commit(journal, [unknown]) == [Appended(unknown, 6)]
            await stock.flush()
            assert len(asked) == 1

            stale = writer.next(TURN, fence=seen)
            assert await commit(journal, [stale]) == [Conflict(stale)]

    asyncio.run(scenario())


def _recording(bodies: list[Any]) -> Any:
    async def record(message: Any) -> None:
        bodies.append(message.data)

    return record
