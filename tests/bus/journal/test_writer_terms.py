"""Terms: one suite for both buses, then the faults of a real server.

A node appends in the last term that it has begun. As soon as another node begins a term in the
partition, no append of the first is stored, whatever it expects and however it is sent.
"""

from __future__ import annotations

import asyncio

import nats.errors
import pytest

from rookery.bus.journal.writer_terms import CLAIM
from rookery.bus.ports import PARTITIONS, Appended, AppendRequest, Bus, Filter, Journal, Superseded
from rookery.bus.streams import terms_in
from rookery.bus.subjects import Subjects, partition_of
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed
from tests.bus.journals import Writer, body_of, gather, session
from tests.bus.realms import JetStreamRealm, Realm

EVERY = frozenset(range(PARTITIONS))
SUBJECTS = Subjects("default")


async def outcome_of(journal: Journal, append: AppendRequest) -> object:
    """Append as a node does, with the terms that it holds."""
    settled: asyncio.Future[list[object]] = asyncio.get_running_loop().create_future()
    journal.append([append], settled.set_result)
    async with asyncio.timeout(20):
        (outcome,) = await settled
    return outcome


async def stored(bus: Bus) -> list[str]:
    return [one.message_id for one in await gather(bus.journal.scan(Filter()))]


def test_without_a_term_a_node_appends_only_facts_about_itself(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            writer = Writer()
            refused = writer.next(session("a"))
            assert await outcome_of(bus.journal, refused) == Superseded(refused)
            said = writer.next(EntityId("node", "n1"), body_of("n1"))
            assert await outcome_of(bus.journal, said) == Appended(said, 1)

    asyncio.run(scenario())


def test_only_the_node_with_the_newest_term_appends(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second:
            assert set((await first.journal.begin_terms(EVERY)).values()) == {1}
            writer = Writer()
            assert await writer.write(first.journal, session("a")) == [1]
            assert set((await second.journal.begin_terms(EVERY)).values()) == {2}
            late = writer.next(session("a"))  # What it expects is true.
            assert await outcome_of(first.journal, late) == Superseded(late)
            assert await writer.write(second.journal, session("a")) == [2]
            assert late.message_id not in await stored(second)

    asyncio.run(scenario())


def test_a_term_is_of_one_partition(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second:
            ours, theirs = "a", next(k for k in "bcdef" if partition_of(k) != partition_of("a"))
            await first.journal.begin_terms(EVERY)
            await second.journal.begin_terms(frozenset({partition_of(theirs)}))
            writer = Writer()
            assert await writer.write(first.journal, session(ours)) == [1]
            lost = writer.next(session(theirs))
            assert await outcome_of(first.journal, lost) == Superseded(lost)
            assert await writer.write(second.journal, session(theirs)) == [2]

    asyncio.run(scenario())


def test_the_verified_end_needs_every_held_term_to_be_current(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second:
            await first.journal.begin_terms(EVERY)
            await Writer().write(first.journal, session("a"))
            assert await first.journal.verified_end(EVERY) == 1
            await second.journal.begin_terms(frozenset({3}))
            with pytest.raises(Failed, match="CLAIM_LOST"):
                await first.journal.verified_end(EVERY)
            assert await first.journal.verified_end(EVERY - {3}) == 1  # Released meanwhile.
            assert await second.journal.verified_end(EVERY) == 1

    asyncio.run(scenario())


def test_after_a_reset_a_partition_needs_a_new_term(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            await bus.journal.begin_terms(EVERY)
            writer = Writer()
            await writer.write(bus.journal, session("a"))
            bus.reset()
            append = writer.next(session("a"))
            assert await outcome_of(bus.journal, append) == Superseded(append)
            while True:
                try:
                    assert set((await bus.journal.begin_terms(EVERY)).values()) == {2}
                    break
                except Failed:  # The connection comes back.
                    await asyncio.sleep(0.02)
            assert await writer.write(bus.journal, session("a")) == [2]

    asyncio.run(scenario())


def test_nodes_that_begin_terms_at_once_each_have_theirs(realm: Realm) -> None:
    async def scenario() -> None:
        shares = [frozenset(range(n, PARTITIONS, 4)) for n in range(4)]
        async with realm.bus() as a, realm.bus() as b, realm.bus() as c, realm.bus() as d:
            buses = [a, b, c, d]
            for _ in range(3):
                pairs = zip(buses, shares, strict=True)
                await asyncio.gather(*(bus.journal.begin_terms(share) for bus, share in pairs))
            writer = Writer()
            for bus, share in zip(buses, shares, strict=True):
                key = next(k for k in map(str, range(1_000)) if partition_of(k) in share)
                await writer.write(bus.journal, session(key))

    asyncio.run(scenario())


# --- the real server ------------------------------------------------------------------------------


def test_a_plain_subscriber_receives_stored_facts_only(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus, jetstream.stock() as plain:
            heard: list[str] = []

            async def hear(message: nats.aio.msg.Msg) -> None:
                heard.append(message.headers["Nats-Msg-Id"])

            await plain.subscribe("rookery.default.ev.>", cb=hear)
            await plain.flush()
            await bus.journal.begin_terms(EVERY)
            writer = Writer()
            entities = [session(f"s{n}") for n in range(40)]
            await writer.write(bus.journal, entities[0])
            await writer.write(bus.journal, *entities)  # A batch.
            stale = writer.next(entities[0], expected=1)
            await outcome_of(bus.journal, stale)
            await bus.connection.flush()
            await plain.flush()
            assert heard == await stored(bus)

    asyncio.run(scenario())


def test_a_fact_cannot_be_forged_on_the_subject_of_facts(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus, jetstream.stock() as stranger:
            await bus.journal.begin_terms(EVERY)
            for subject in ("rookery.default.ev.session.a", "rookery.default.w.3.1.session.a"):
                with pytest.raises(nats.errors.NoRespondersError):
                    await stranger.request(subject, b"[]", timeout=60)
            assert await bus.journal.end() == 0

    asyncio.run(scenario())


def test_an_old_term_that_is_restored_is_noticed_and_replaced(
    jetstream: JetStreamRealm,
) -> None:
    """A node is paused between reading the stream's configuration and updating it."""

    async def scenario() -> None:
        async with jetstream.bus() as old, jetstream.bus() as owner:
            await old.journal.begin_terms(EVERY)
            stream = f"STREAM.{{}}.{SUBJECTS.journal_stream}"
            before = (await old.connection.api(stream.format("INFO")))["config"]
            await owner.journal.begin_terms(EVERY)
            await owner.connection.api(stream.format("UPDATE"), before)
            writer = Writer()
            with pytest.raises(Failed, match="CLAIM_LOST"):
                await owner.journal.verified_end(EVERY)
            lost = writer.next(session("a"))
            assert await outcome_of(owner.journal, lost) == Superseded(lost)
            await owner.journal.begin_terms(EVERY)
            assert await writer.write(owner.journal, session("a")) == [1]

    asyncio.run(scenario())


def test_an_append_of_an_ended_term_is_reported_as_stored_if_it_was(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as first, jetstream.bus() as second:
            await first.journal.begin_terms(EVERY)
            append = Writer().next(session("a"))
            assert await outcome_of(first.journal, append) == Appended(append, 1)
            await second.journal.begin_terms(EVERY)
            # Sent once more, as if its ack had been lost.
            assert await outcome_of(first.journal, append) == Appended(append, 1)

    asyncio.run(scenario())


def test_a_term_has_random_bits_and_a_growing_number(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            seen: set[str] = set()
            for number in range(1, 4):
                await bus.journal.begin_terms(frozenset({3}))
                info = await bus.connection.api(f"STREAM.INFO.{SUBJECTS.journal_stream}")
                turn = terms_in(SUBJECTS, info["config"])[3]
                assert turn.partition("-")[0] == str(number)
                assert len(bytes.fromhex(turn.partition("-")[2])) == 16
                seen.add(turn.partition("-")[2])
            assert len(seen) == 3
            assert CLAIM not in [claim.name for claim in await bus.claims.list()]

    asyncio.run(scenario())
