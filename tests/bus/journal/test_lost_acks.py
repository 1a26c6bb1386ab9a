"""The first test of the bus: an append whose ack was lost is stored, not a conflict.

JetStream checks expectations before it looks for duplicates, so an exact repetition of a stored
append is refused: as a wrong last sequence (10071), in a batch also as a duplicate (10201).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from rookery.bus.jetstream_api import decode_ack
from rookery.bus.journal.journal import JetStreamJournal
from rookery.bus.nats import Connection, Message
from rookery.bus.ports import Appended, AppendOutcome, AppendRequest, Backpressure, Conflict
from rookery.bus.subjects import Subjects
from rookery.schemas.envelope import EntityId
from tests.bus.deadlines import wait_until
from tests.bus.journals import Writer, body_of, commit, session, share_turns
from tests.bus.proxy import Proxy, proxied
from tests.bus.realms import JetStreamRealm, soon

STREAM = "ROOKERY_default_JOURNAL"
DIFFICULT_NETWORKS = pytest.mark.parametrize("size", [1, 10, 100])


@asynccontextmanager
async def far_journal(proxy: Proxy, timeout_s: float = 0.1) -> AsyncIterator[JetStreamJournal]:
    """A journal behind the proxy, with a short timeout."""
    connection = Connection(proxy.url)
    await connection.open()
    journal = JetStreamJournal(connection, Subjects("default"), timeout_s=timeout_s)
    await journal.open()
    await share_turns(journal)
    try:
        yield journal
    finally:
        await journal.close()
        await connection.close()


def is_ack(body: bytes) -> bool:
    return body.startswith(b'{"stream":') and b'"seq":' in body


def sequences(outcomes: list[AppendOutcome]) -> list[int]:
    assert all(isinstance(outcome, Appended) for outcome in outcomes), outcomes
    return [outcome.sequence for outcome in outcomes if isinstance(outcome, Appended)]


@DIFFICULT_NETWORKS
def test_a_lost_ack_is_recognised_as_ours(jetstream: JetStreamRealm, size: int) -> None:
    async def scenario() -> None:
        async with (
            jetstream.bus() as near,
            proxied(jetstream.server.url) as proxy,
            far_journal(proxy) as journal,
        ):
            writer = Writer()
            group = [writer.next(session(f"s{n}")) for n in range(size)]
            acks = 1 if size > 16 else size
            proxy.swallows = lambda body: is_ack(body) and len(proxy.swallowed) < acks
            outcomes = await commit(journal, group)
            assert sequences(outcomes) == list(range(1, size + 1))
            assert len(proxy.swallowed) == acks
            assert any(b"10071" in body for body in proxy.passed)
            assert await near.journal.end() == size
            counters = journal.counters
            assert (counters.lost_acks, counters.conflicts) == (size, 0)
            assert counters.resent >= size, "more if the server takes long"
            assert counters.batches == (size > 16), "what was not answered goes out alone"
            assert journal.pressure is Backpressure.NONE

    asyncio.run(scenario())


@DIFFICULT_NETWORKS
def test_acks_lost_with_the_connection_are_recognised_as_ours(
    jetstream: JetStreamRealm, size: int
) -> None:
    async def scenario() -> None:
        async with (
            jetstream.bus() as near,
            proxied(jetstream.server.url) as proxy,
            far_journal(proxy, timeout_s=600) as journal,
        ):
            writer = Writer()
            proxy.hold()
            group = [writer.next(session(f"s{n}")) for n in range(size)]
            waiting = asyncio.create_task(commit(journal, group))
            await soon(lambda: _ends_at(near.journal, size))
            proxy.cut()
            assert sequences(await waiting) == list(range(1, size + 1))
            assert await near.journal.end() == size
            assert journal.counters.lost_acks == size

    asyncio.run(scenario())


async def _ends_at(journal: JetStreamJournal, sequence: int) -> bool:
    return await journal.end() == sequence


def test_a_batch_repeated_by_a_restarted_writer_is_recognised_member_by_member(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with (
            jetstream.bus() as near,
            proxied(jetstream.server.url) as proxy,
            far_journal(proxy) as journal,
        ):
            info = await near.connection.api(f"STREAM.INFO.{STREAM}")
            remembering = info["config"] | {"duplicate_window": 60_000_000_000}
            await near.connection.api(f"STREAM.UPDATE.{STREAM}", remembering)
            writer = Writer()
            group = [writer.next(session(f"s{n}")) for n in range(60)]
            stored = await commit(near.journal, group[:50])
            again = await commit(journal, group)
            assert again[:50] == stored
            assert sequences(again[50:]) == list(range(51, 61))
            assert any(b"10201" in body for body in proxy.passed)
            assert await near.journal.end() == 60

    asyncio.run(scenario())


def test_a_lost_ack_is_ours_even_if_others_have_appended_since(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with (
            jetstream.bus() as near,
            proxied(jetstream.server.url) as proxy,
            far_journal(proxy) as journal,
        ):
            writer = Writer()
            proxy.hold()
            append = writer.next(session("a"))
            waiting = asyncio.create_task(commit(journal, [append]))
            await soon(lambda: _ends_at(near.journal, 1))
            other = Writer("other")
            other.ends[session("a")] = 1, append.chain
            for _ in range(3):
                await other.write(near.journal, session("a"))
            proxy.cut()
            assert await waiting == [Appended(append, 1)]

    asyncio.run(scenario())


def test_a_conflict_with_a_lost_ack_is_still_a_conflict(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with (
            jetstream.bus() as near,
            proxied(jetstream.server.url) as proxy,
            far_journal(proxy) as journal,
        ):
            await Writer("other").write(near.journal, session("a"))
            append = Writer().next(session("a"))
            proxy.swallows = lambda body: b"10071" in body and not proxy.swallowed
            assert await commit(journal, [append]) == [Conflict(append)]
            assert await near.journal.end() == 1
            assert journal.pressure is Backpressure.NONE

    asyncio.run(scenario())


def test_the_lost_ack_of_a_fenced_append_is_recognised_as_ours(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with (
            jetstream.bus() as near,
            proxied(jetstream.server.url) as proxy,
            far_journal(proxy) as journal,
        ):
            writer = Writer()
            (seen,) = await writer.write(near.journal, session("a"))
            append = writer.next(EntityId("turn", "a"), fence=seen)
            proxy.swallows = lambda body: is_ack(body) and not proxy.swallowed
            assert await commit(journal, [append]) == [Appended(append, 2)]
            assert len(proxy.swallowed) == 1
            assert await near.journal.end() == 2

    asyncio.run(scenario())


def test_an_append_interrupted_on_its_way_is_stored_once(jetstream: JetStreamRealm) -> None:
    """The outcome is right, whatever the server did with the bytes of a lost connection."""

    async def scenario() -> None:
        async with (
            jetstream.bus() as near,
            proxied(jetstream.server.url) as proxy,
            far_journal(proxy) as journal,
        ):
            writer = Writer()
            entities = [session(f"s{n}") for n in range(40)]
            for number in range(20):
                appends = [writer.next(entity, body_of("x" * 5000)) for entity in entities]
                waiting = asyncio.create_task(commit(journal, appends))
                if number % 2:
                    await asyncio.sleep(0)
                proxy.cut()
                writer.learn(outcomes := await waiting)
                sequences(outcomes)
            assert await near.journal.end() == 800
            for entity in entities:
                assert len(await near.journal.read(entity)) == 20

    asyncio.run(scenario())


def test_an_append_is_settled_once_however_many_acks_arrive(
    jetstream: JetStreamRealm,
) -> None:
    """The late ack of an attempt that has timed out is dropped."""

    async def scenario() -> None:
        async with (
            jetstream.bus() as near,
            proxied(jetstream.server.url) as proxy,
            far_journal(proxy) as journal,
        ):
            outcomes: list[AppendOutcome] = []
            appends: list[AppendRequest] = [Writer().next(session("a"))]
            proxy.hold()
            journal.append(appends, outcomes.extend)
            await soon(lambda: _ends_at(near.journal, 1))
            await wait_until(lambda: journal.counters.resent >= 2)
            proxy.release()
            await wait_until(lambda: outcomes)
            await near.journal.end()
            await journal.end()  # Everything sent before has been answered.
            assert outcomes == [Appended(appends[0], 1)]

    asyncio.run(scenario())


def test_an_ack_that_does_not_parse_is_retried() -> None:
    message = Message("_INBOX.1", "", b"", b"<html>")
    assert decode_ack(message).verdict.name == "RETRY"
