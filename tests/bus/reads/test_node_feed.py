"""A client's feed, followed through a node, against the faults of a real server and network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

import pytest

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.nats import Connection
from rookery.bus.ports import Filter, StoredMessage
from rookery.bus.reads import NodeFeed, NodeJournal
from rookery.bus.reads.feed import LIVE_MESSAGES_MAX
from rookery.bus.subjects import Subjects
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed
from tests.bus.deadlines import wait_until
from tests.bus.journals import Writer, body_of, commit, gather, pages, session
from tests.bus.proxy import Proxy, proxied
from tests.bus.realms import JetStreamRealm

STREAM = "ROOKERY_default_JOURNAL"
SUBJECTS = Subjects("default")
PATIENCE_S = 60.0


def numbers(messages: list[StoredMessage]) -> list[int]:
    return [stored.sequence for stored in messages]


class Follower:
    """A running follower and the messages that it has received."""

    def __init__(self, feed: NodeFeed, where: Filter, after: int) -> None:
        self.seen: list[StoredMessage] = []
        self.may_take = asyncio.Event()
        self.may_take.set()
        self._task = asyncio.create_task(self._follow(feed, where, after))

    async def _follow(self, feed: NodeFeed, where: Filter, after: int) -> None:
        async for page in feed.follow(where, after):
            self.seen += page
            await self.may_take.wait()

    async def wait_for(self, number: int) -> None:
        await wait_until(lambda: self._task.done() or len(self.seen) >= number, PATIENCE_S)
        if self._task.done():
            await self._task

    async def cancel(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


class Far(NamedTuple):
    """A serving node, and the connection of a client behind a proxy."""

    bus: JetStreamBus
    proxy: Proxy
    connection: Connection
    stack: AsyncExitStack

    def follow(self, where: Filter = Filter(), after: int = 0) -> Follower:  # noqa: B008
        follower = Follower(NodeFeed(self.connection, SUBJECTS), where, after)
        self.stack.push_async_callback(follower.cancel)
        return follower

    def lose_one(self) -> None:
        """The next fact on its way to the client is lost."""
        before = len(self.proxy.swallowed)
        self.proxy.swallows = lambda body: (
            b"session_id_in" in body and len(self.proxy.swallowed) == before
        )


@asynccontextmanager
async def far(realm: JetStreamRealm) -> AsyncIterator[Far]:
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(realm.bus())
        await bus.request_endpoint.open(lambda _: None)
        proxy = await stack.enter_async_context(proxied(realm.server.url))
        connection = Connection(proxy.url)
        await connection.open()
        stack.push_async_callback(connection.close)
        yield Far(bus, proxy, connection, stack)


@asynccontextmanager
async def node(realm: JetStreamRealm) -> AsyncIterator[JetStreamBus]:
    async with realm.bus() as bus:
        await bus.request_endpoint.open(lambda _: None)
        yield bus


def test_a_follower_survives_cut_connections_and_lost_messages_under_load(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with far(jetstream) as there:
            writer, every = Writer(), there.follow()
            of_one = there.follow(Filter("session", "s1"))
            of_key, of_family = there.follow(Filter(key="s1")), there.follow(Filter("session"))
            of_held = there.follow(Filter("tool", "s1"))
            for number in range(30):
                await writer.write(there.bus.journal, *(session(f"s{n}") for n in range(50)))
                await writer.write(there.bus.journal, EntityId("tool", "s1"))
                if number % 7 == 3:
                    await every.wait_for(51 * number - 20)
                    there.proxy.cut()
                if number % 7 in (1, 6):
                    there.lose_one()
            await every.wait_for(1530)
            await of_one.wait_for(30)
            await of_key.wait_for(60)
            await of_family.wait_for(1500)
            await of_held.wait_for(30)
            assert numbers(every.seen) == list(range(1, 1531))
            assert every.seen == await gather(there.bus.journal.scan(Filter()))
            assert numbers(of_one.seen) == list(range(2, 1531, 51))
            assert numbers(of_key.seen) == sorted([*range(2, 1531, 51), *range(51, 1531, 51)])
            assert of_family.seen == [one for one in every.seen if one.entity.family == "session"]
            assert numbers(of_held.seen) == list(range(51, 1531, 51))
            assert there.proxy.swallowed

    asyncio.run(scenario())


@pytest.mark.parametrize("where", [Filter(), Filter("session", "a"), Filter(key="a")])
def test_a_follower_notices_that_the_last_message_never_arrived(
    jetstream: JetStreamRealm, where: Filter
) -> None:
    async def scenario() -> None:
        async with far(jetstream) as there:
            writer, follower = Writer(), there.follow(where)
            await writer.write(there.bus.journal, session("a"))
            await follower.wait_for(1)
            there.lose_one()
            await writer.write(there.bus.journal, session("a"))
            await follower.wait_for(2)
            assert numbers(follower.seen) == [1, 2]

    asyncio.run(scenario())


def test_a_lost_message_is_found_by_the_next_one_on_its_subject(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with far(jetstream) as there:
            writer, follower = Writer(), there.follow(Filter("session", "a"))
            await writer.write(there.bus.journal, session("a"))
            await follower.wait_for(1)
            there.lose_one()
            await writer.write(there.bus.journal, session("a"))
            await wait_until(lambda: there.proxy.swallowed)
            await writer.write(there.bus.journal, session("b"))
            await writer.write(there.bus.journal, session("a"))
            await follower.wait_for(3)
            assert numbers(follower.seen) == [1, 2, 4]

    asyncio.run(scenario())


def test_a_slow_reader_holds_a_bounded_number_of_messages_and_loses_none(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with far(jetstream) as there:
            writer, follower = Writer(), there.follow()
            await writer.write(there.bus.journal, session("first"))
            await follower.wait_for(1)
            follower.may_take.clear()
            for _ in range(5):
                await writer.write(there.bus.journal, *(session(f"s{n}") for n in range(1000)))
            await there.connection.flush()
            assert len(follower.seen) <= 1 + LIVE_MESSAGES_MAX
            follower.may_take.set()
            await follower.wait_for(5001)
            assert numbers(follower.seen) == list(range(1, 5002))

    asyncio.run(scenario())


def test_large_messages_are_read_in_portions(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with far(jetstream) as there:
            writer = Writer()
            large = [writer.next(session(f"s{n}"), body_of("x" * 700_000)) for n in range(40)]
            await commit(there.bus.journal, large)
            follower = there.follow()
            await follower.wait_for(40)
            assert numbers(follower.seen) == list(range(1, 41))
            assert len(follower.seen[-1].body) > 700_000

    asyncio.run(scenario())


def test_a_follower_waits_for_a_node_and_for_a_killed_server(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            async with node(jetstream) as bus:
                writer = Writer()
                await writer.write(bus.journal, session("a"))
            connection = Connection(jetstream.server.url)
            await connection.open()
            stack.push_async_callback(connection.close)
            follower = Follower(NodeFeed(connection, SUBJECTS), Filter(), 0)
            stack.push_async_callback(follower.cancel)
            serving = await stack.enter_async_context(node(jetstream))
            await follower.wait_for(1)
            await asyncio.to_thread(jetstream.server.kill)
            await asyncio.to_thread(jetstream.server.start)
            await wait_until(lambda: serving.connected)
            await writer.write(serving.journal, session("a"), session("b"))
            await follower.wait_for(3)
            assert numbers(follower.seen) == [1, 2, 3]

    asyncio.run(scenario())


@pytest.mark.parametrize("removed", [1, 5])
def test_a_follower_names_what_was_removed_from_the_journal(
    jetstream: JetStreamRealm, removed: int
) -> None:
    async def scenario() -> None:
        async with far(jetstream) as there:
            await _replace_journal(jetstream)
            await Writer().write(there.bus.journal, *(session(f"s{n}") for n in range(10)))
            await jetstream.api(f"STREAM.MSG.DELETE.{STREAM}", {"seq": removed})
            gone = f"FEED_GAP.*messages {removed} to {removed} are missing from the journal"
            feed = NodeFeed(there.connection, SUBJECTS)
            journal = NodeJournal(there.connection, SUBJECTS)
            follower = there.follow()
            with pytest.raises(Failed, match=gone):
                await follower.wait_for(10)
            assert numbers(follower.seen) == list(range(1, removed))
            with pytest.raises(Failed, match=gone):
                await pages(feed.follow(Filter(key="s7")), 1)
            with pytest.raises(Failed, match=gone):
                await gather(journal.scan(Filter()))
            behind = await pages(feed.follow(Filter(), removed), 10 - removed)
            assert numbers(behind) == list(range(removed + 1, 11))
            assert numbers(await pages(feed.follow(Filter(key="s7"), removed), 1)) == [8]

    asyncio.run(scenario())


def test_a_journal_that_was_replaced_is_a_gap(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with far(jetstream) as there:
            await Writer().write(there.bus.journal, *(session(f"s{n}") for n in range(10)))
            follower = there.follow()
            await follower.wait_for(10)
            await _replace_journal(jetstream)
            await Writer("other").write(there.bus.journal, session("a"))
            with pytest.raises(Failed, match=r"FEED_GAP.*ends at [01], before the position 10"):
                await follower.wait_for(11)

    asyncio.run(scenario())


def test_an_ack_that_a_client_steers_to_a_subject_of_facts_is_no_fact(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with far(jetstream) as there, jetstream.stock() as stock:
            writer, follower = Writer(), there.follow()
            await writer.write(there.bus.journal, session("a"))
            await follower.wait_for(1)
            fact = SUBJECTS.fact(session("a"))
            await stock.publish("rookery.default.cmd.run.a", b"{}", reply=fact)
            await stock.flush()
            await writer.write(there.bus.journal, session("a"))
            await follower.wait_for(2)
            assert numbers(follower.seen) == [1, 2]

    asyncio.run(scenario())


@pytest.mark.parametrize("tail", ["x", "session.a.b"])
def test_a_message_whose_subject_names_no_entity_ends_no_feed_and_no_scan(
    jetstream: JetStreamRealm, tail: str
) -> None:
    async def scenario() -> None:
        async with far(jetstream) as there, jetstream.stock() as stock:
            writer, client = Writer(), NodeJournal(there.connection, SUBJECTS)
            await writer.write(there.bus.journal, session("a"))
            live = there.follow()
            await live.wait_for(1)
            appends = (await jetstream.node_subjects()).node_appends()
            await stock.request(f"{appends.removesuffix('>')}{tail}", b"junk")
            await writer.write(there.bus.journal, session("a"))
            late = there.follow()
            for follower in (live, late):
                await follower.wait_for(3)
                assert numbers(follower.seen) == [1, 2, 3]
            assert numbers(await pages(there.bus.feed.follow(Filter()), 3)) == [1, 2, 3]
            for journal in (there.bus.journal, client):
                found = await gather(journal.scan(Filter()))
                assert [one.entity for one in found][1] == EntityId("foreign", tail)
                assert numbers(await gather(journal.scan(Filter("session")))) == [1, 3]
                assert await journal.at(2) == found[1]

    asyncio.run(scenario())


async def _replace_journal(realm: JetStreamRealm) -> None:
    """Replace the journal by a stream whose messages can be removed."""
    info = await realm.api(f"STREAM.INFO.{STREAM}")
    await realm.api(f"STREAM.DELETE.{STREAM}")
    loose = info["config"] | {"deny_delete": False, "deny_purge": False}
    await realm.api(f"STREAM.CREATE.{STREAM}", loose)
