"""The journal: one suite for both buses, then the faults of a real server."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import nats
import pytest

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.journal.append_messages import BATCH_MESSAGES_MAX
from rookery.bus.ports import (
    Appended,
    AppendOutcome,
    AppendRejected,
    Backpressure,
    Conflict,
    Filter,
)
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed
from tests.bus.deadlines import wait_until
from tests.bus.journals import Writer, body_of, commit, gather, session
from tests.bus.kill_campaign import run_campaign
from tests.bus.proxy import proxied
from tests.bus.realms import JetStreamRealm, Realm

STREAM = "ROOKERY_default_JOURNAL"


def kinds(outcomes: list[AppendOutcome]) -> list[str]:
    return [type(outcome).__name__ for outcome in outcomes]


def test_an_append_is_stored_whole_when_its_expectation_holds(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            writer, journal = Writer(), bus.journal
            first = writer.next(session("a"))
            (settled,) = await commit(journal, [first])
            assert settled == Appended(first, 1)
            stored = await journal.last(session("a"))
            assert stored is not None
            assert (stored.sequence, stored.entity) == (1, session("a"))
            assert (stored.message_id, stored.chain, stored.body) == (
                first.message_id,
                first.chain,
                first.body,
            )
            assert stored.stored_at_ms > 0
            assert await journal.end() == 1
            assert journal.pressure is Backpressure.NONE

    asyncio.run(scenario())


def test_a_conflict_stores_nothing(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            writer, journal = Writer(), bus.journal
            await writer.write(journal, session("a"))
            for expected in (0, 7):
                late = writer.next(session("a"), expected=expected)
                assert await commit(journal, [late]) == [Conflict(late)]
            early = writer.next(session("new"), expected=1)
            assert await commit(journal, [early]) == [Conflict(early)]
            assert await journal.end() == 1
            assert await journal.at(1) == await journal.last(session("a"))
            assert await journal.at(2) is None
            assert await journal.last(session("new")) is None
            assert await journal.read(session("new")) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [1, 8, 100])
def test_appends_of_a_group_are_independent(realm: Realm, size: int) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            writer, journal = Writer(), bus.journal
            entities = [session(f"s{number}") for number in range(size)]
            await writer.write(journal, *entities)
            group = [writer.next(entity) for entity in entities]
            stale = size // 2
            group[stale].expected += 1000
            outcomes = await commit(journal, group)
            expected = ["Appended"] * size
            expected[stale] = "Conflict"
            assert kinds(outcomes) == expected
            assert await journal.end() == 2 * size - 1
            for outcome in outcomes:
                stored = await journal.read(outcome.append.entity)
                assert len(stored) == 1 + isinstance(outcome, Appended)

    asyncio.run(scenario())


def test_an_entitys_messages_are_in_the_order_of_its_commits(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            writer, journal = Writer(), bus.journal
            wanted = []
            for number in range(30):
                append = writer.next(session("a"), body_of(f"{number}"))
                wanted.append(append.message_id)
                writer.learn(await commit(journal, [append, writer.next(session(f"b{number}"))]))
            stored = await journal.read(session("a"))
            assert [one.message_id for one in stored] == wanted
            sequences = [one.sequence for one in stored]
            assert sequences == sorted(set(sequences))
            assert await journal.read(session("a"), sequences[9]) == stored[10:]
            assert await journal.read(session("a"), sequences[-1]) == []
            assert await journal.last(session("a")) == stored[-1]
            assert await gather(journal.scan(Filter("session", "a"))) == stored

    asyncio.run(scenario())


def test_an_entity_of_many_pages_is_read_whole(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            writer, journal = Writer(), bus.journal
            for _ in range(300):
                await writer.write(journal, session("a"))
            assert [one.sequence for one in await journal.read(session("a"))] == list(range(1, 301))

    asyncio.run(scenario())


def test_a_fence_holds_against_every_family_of_its_key(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            writer, journal = Writer(), bus.journal
            turn, tool = EntityId("turn", "a"), EntityId("tool", "a")
            await writer.write(journal, session("a"), turn)
            (newest,) = await writer.write(journal, tool)
            fenced = writer.next(session("a"), fence=newest)
            behind = writer.next(turn, fence=newest - 1)
            assert kinds(await commit(journal, [behind])) == ["Conflict"]
            await writer.write(journal, session("other"), session("a.b"))
            assert kinds(await commit(journal, [fenced])) == ["Appended"]
            first = writer.next(EntityId("lease", "new"), fence=0)
            assert kinds(await commit(journal, [first])) == ["Appended"]

    asyncio.run(scenario())


def test_a_fence_does_not_replace_the_entitys_expectation(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            writer, journal = Writer(), bus.journal
            await writer.write(journal, session("a"))
            await writer.write(journal, session("a"))
            (newest,) = await writer.write(journal, EntityId("turn", "a"))
            stale = writer.next(session("a"), expected=1, fence=newest)
            assert await commit(journal, [stale]) == [Conflict(stale)]
            assert await journal.end() == newest

    asyncio.run(scenario())


@pytest.mark.parametrize("others", [0, 40])
@pytest.mark.parametrize("known", [True, False])
def test_of_two_fenced_appends_of_a_group_exactly_one_passes(
    realm: Realm, known: bool, others: int
) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            writer, journal = Writer(), bus.journal
            (seen,) = await writer.write(journal, session("a")) if known else [0]
            group = [writer.next(session(f"other{number}")) for number in range(others)]
            group += [
                writer.next(session("a"), fence=seen),
                writer.next(EntityId("turn", "a"), fence=seen),
            ]
            outcomes = await commit(journal, group)
            assert sorted(kinds(outcomes[-2:])) == ["Appended", "Conflict"]
            assert set(kinds(outcomes[:-2])) <= {"Appended"}

    asyncio.run(scenario())


@pytest.mark.parametrize("known", [True, False])
def test_a_fence_sees_earlier_messages_of_its_own_group(realm: Realm, known: bool) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            writer, journal = Writer(), bus.journal
            (seen,) = await writer.write(journal, session("a")) if known else [0]
            group = [writer.next(session(f"other{number}")) for number in range(40)]
            fenced = writer.next(EntityId("turn", "a"), fence=seen)
            outcomes = await commit(journal, [*group, writer.next(session("a")), fenced])
            stored = {outcome.append.entity.family: outcome for outcome in outcomes[-2:]}
            match stored["session"], stored["turn"]:
                case Appended(), Conflict():
                    pass
                case Appended(sequence=session_at), Appended(sequence=turn_at):
                    assert turn_at < session_at, "the fence was passed"
                case other:
                    pytest.fail(f"{other}")

    asyncio.run(scenario())


def test_a_repeated_append_settles_with_its_first_sequence(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus, realm.bus() as later:
            writer, journal = Writer(), bus.journal
            group = [writer.next(session(f"s{number}")) for number in range(40)]
            first = await commit(journal, group)
            writer.learn(first)
            for number in range(20):  # Others have followed half of them meanwhile.
                await writer.write(journal, session(f"s{number}"))
            assert await commit(later.journal, group) == first
            assert await commit(later.journal, group[:1]) == first[:1]
            assert await journal.end() == 60

    asyncio.run(scenario())


def test_a_scan_returns_selected_messages_in_order_up_to_the_end_at_its_start(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            writer, journal = Writer(), bus.journal
            numbers = count()
            for key in "abcab":
                for family in ("session", "turn"):
                    run = f"run-{next(numbers) % 3}"
                    append = writer.next(EntityId(family, key), body_of(key, run))
                    writer.learn(await commit(journal, [append]))
            everything = await gather(journal.scan(Filter()))
            assert [one.sequence for one in everything] == list(range(1, 11))

            async def numbers_of(where: Filter, after: int = 0) -> list[int]:
                return [one.sequence for one in await gather(journal.scan(where, after))]

            assert await numbers_of(Filter(family="turn")) == [2, 4, 6, 8, 10]
            assert await numbers_of(Filter(key="a")) == [1, 2, 7, 8]
            assert await numbers_of(Filter("session", "b"), 3) == [9]
            assert await numbers_of(Filter(run="run-2")) == [3, 6, 9]
            assert await numbers_of(Filter(run="run")) == []
            assert await numbers_of(Filter(key="nobody")) == []
            assert await numbers_of(Filter(), 10) == []

            seen = []
            async for page in journal.scan(Filter(), 4):
                await writer.write(journal, session("grows"))
                seen += [one.sequence for one in page]
            assert seen == [5, 6, 7, 8, 9, 10]

    asyncio.run(scenario())


def test_a_key_is_read_whole_or_not_at_all(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            writer, journal = Writer(), bus.journal
            for family in ("session", "turn", "approval", "turn"):
                for key in ("a", "ab"):
                    append = writer.next(EntityId(family, key), body_of(family))
                    writer.learn(await commit(journal, [append]))
            found = await journal.of_key("a", 4)
            assert found == await gather(journal.scan(Filter(key="a")))
            assert [one.sequence for one in found] == [1, 3, 5, 7]
            assert await journal.of_key("a", 3) is None
            assert await journal.of_key("nothing", 3) == []

    asyncio.run(scenario())


@pytest.mark.parametrize("key", ["github.com", "a*b", ">", "%2E", "two words", "ünï✓", "x\ty"])
def test_a_key_of_any_characters_is_read_back_unchanged(realm: Realm, key: str) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            writer, journal = Writer(), bus.journal
            await writer.write(journal, session(key), session("a"), session("b"))
            assert [one.entity for one in await journal.read(session(key))] == [session(key)]
            scanned = await gather(journal.scan(Filter(key=key)))
            assert [one.entity for one in scanned] == [session(key)]

    asyncio.run(scenario())


def test_appending_no_messages_has_no_effect(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            assert await commit(bus.journal, []) == []
            assert await bus.journal.end() == 0
            assert await gather(bus.journal.scan(Filter())) == []

    asyncio.run(scenario())


# --- a real server ------------------------------------------------------------------------------


def test_a_message_too_large_is_rejected_and_its_neighbours_commit(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            writer, journal = Writer(), bus.journal
            group = [writer.next(session(f"s{number}")) for number in range(40)]
            group[17] = writer.next(session("large"), body_of("x" * (1 << 20)))
            outcomes = await commit(journal, group)
            rejected = outcomes.pop(17)
            assert isinstance(rejected, AppendRejected)
            assert rejected.code == "PAYLOAD_TOO_LARGE"
            assert set(kinds(outcomes)) == {"Appended"}
            assert bus.connected
            await _limit(bus, max_msg_size=2000)
            refused = writer.next(session("large"), body_of("x" * 2000))
            (outcome,) = await commit(journal, [refused])
            assert isinstance(outcome, AppendRejected)
            assert outcome.code == "PAYLOAD_TOO_LARGE"

    asyncio.run(scenario())


def test_a_refused_batch_is_halved_until_only_its_stale_members_are_left(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            writer, journal = Writer(), bus.journal
            group = [writer.next(session(f"s{number}")) for number in range(200)]
            stale = (3, 77, 78)
            for number in stale:
                group[number].expected = 1000
            outcomes = await commit(journal, group)
            found = [n for n, kind in enumerate(kinds(outcomes)) if kind == "Conflict"]
            assert tuple(found) == stale
            assert await journal.end() == 197
            assert journal.counters.batches > 1
            assert journal.counters.conflicts == 3

    asyncio.run(scenario())


def test_a_group_is_sent_in_batches_of_at_most_a_thousand(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            writer, journal = Writer(), bus.journal
            size = 2 * BATCH_MESSAGES_MAX + 100
            sequences = await writer.write(journal, *(session(f"s{n}") for n in range(size)))
            assert sequences == list(range(1, size + 1))
            assert journal.counters.batches == 3
            large = [writer.next(session(f"large{n}"), body_of("x" * 400_000)) for n in range(40)]
            assert set(kinds(await commit(journal, large))) == {"Appended"}
            assert journal.counters.batches == 5, "16 MB are two batches"

    asyncio.run(scenario())


def test_a_server_that_does_not_sync_gets_no_batch(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        bus = JetStreamBus(jetstream.server.url, sync="default")
        await bus.start()
        writer = Writer()
        await writer.write(bus.journal, *(session(f"s{n}") for n in range(500)))
        assert bus.journal.counters.batches == 0
        await bus.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("size", [5, 60])
def test_appends_wait_while_the_store_is_full(jetstream: JetStreamRealm, size: int) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            writer, journal = Writer(), bus.journal
            await writer.write(journal, session("first"))
            await _limit(bus, max_bytes=1024)
            group = [writer.next(session(f"s{n}"), body_of("x" * 300)) for n in range(size)]
            waiting = asyncio.create_task(commit(journal, group))
            await wait_until(lambda: journal.pressure is Backpressure.FULL)
            late = asyncio.create_task(commit(journal, [writer.next(session("late"))]))
            await _limit(bus, max_bytes=-1)
            assert set(kinds(await waiting + await late)) == {"Appended"}
            assert journal.pressure is Backpressure.NONE
            assert await journal.end() == size + 2

    asyncio.run(scenario())


def test_a_partly_stored_batch_is_settled_member_by_member(
    tmp_path: Path,
) -> None:
    """A full server stores the first part of the batch and never acks (2.15.1)."""

    async def scenario() -> None:
        bus = JetStreamBus(server.url)
        await bus.start()
        admin = await nats.connect(server.admin_url)
        ballast = admin.jetstream()
        await ballast.add_stream(name="BALLAST", subjects=["ballast"])
        for _ in range(8):
            await ballast.publish("ballast", b"x" * 500_000)
        writer, journal = Writer(), bus.journal
        group = [writer.next(session(f"s{n}"), body_of("x" * 100_000)) for n in range(60)]
        waiting = asyncio.create_task(commit(journal, group))
        await wait_until(lambda: journal.pressure is Backpressure.FULL)
        assert 0 < await journal.end() < 60
        await ballast.delete_stream("BALLAST")
        assert set(kinds(await waiting)) == {"Appended"}
        assert await journal.end() == 60
        await admin.close()
        await bus.stop()

    with EmbeddedServer(tmp_path / "store", store_bytes_max=8 << 20, admin=True) as server:
        asyncio.run(scenario())


def test_a_long_entity_is_read_over_a_slow_link_and_silence_is_an_error(
    jetstream: JetStreamRealm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rookery.bus.nats.direct_get._PAGE_MESSAGES", 30)
    monkeypatch.setattr("rookery.bus.nats.direct_get._ALONE_S_MAX", 1.0)

    async def scenario() -> None:
        async with proxied(jetstream.server.url) as proxy:
            bus = JetStreamBus(proxy.url)
            await bus.start()
            writer, entity = Writer(), session("long")
            for _ in range(60):
                await writer.write(bus.journal, entity)
            proxy.pause_s = 0.04
            assert len(await bus.journal.read(entity)) == 60
            proxy.hold()
            with pytest.raises(Failed, match="SERVER_UNREACHABLE"):
                await bus.journal.read(entity)
            await bus.stop()

    asyncio.run(scenario())


def test_appends_wait_for_the_end_of_an_outage(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            writer, journal = Writer(), bus.journal
            await writer.write(journal, session("a"))
            await asyncio.to_thread(jetstream.server.stop)
            await wait_until(lambda: journal.pressure is Backpressure.UNREACHABLE)
            group = [writer.next(session(f"s{n}")) for n in range(40)]
            fenced = writer.next(session("a"), fence=1)
            waiting = asyncio.create_task(commit(journal, [*group, fenced]))
            await asyncio.to_thread(jetstream.server.start)
            assert set(kinds(await waiting)) == {"Appended"}
            assert journal.pressure is Backpressure.NONE

    asyncio.run(scenario())


def test_a_server_killed_under_load_loses_nothing_and_stores_nothing_twice(
    tmp_path: Path,
) -> None:
    report = asyncio.run(run_campaign(tmp_path / "store", kills=2, acked_min=2_000))
    assert report.kills == 2
    assert report.acked >= 2_000
    assert report.conflicts == 0


async def _limit(bus: JetStreamBus, **limits: int) -> None:
    """Change the stream as an operator would."""
    info = await bus.connection.api(f"STREAM.INFO.{STREAM}")
    await bus.connection.api(f"STREAM.UPDATE.{STREAM}", info["config"] | limits)
