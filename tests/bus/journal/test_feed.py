"""The feed: one suite for both buses, then the faults of a real server and network."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.nats.connection import Connection
from rookery.bus.ports import Bus, Filter, StoredMessage
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed
from tests.bus.deadlines import wait_until
from tests.bus.journals import Writer, body_of, commit, gather, pages, session
from tests.bus.proxy import Proxy, proxied
from tests.bus.realms import JetStreamRealm, MemoryRealm, NodeRealm, Realm, soon


@pytest.fixture(params=["memory", "jetstream", "node"])
def realm(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Realm]:
    """A client's feed, through a node, beside the feeds of both buses."""
    if request.param == "memory":
        yield MemoryRealm()
        return
    served = (NodeRealm if request.param == "node" else JetStreamRealm)(tmp_path / "store")
    with served.server:
        yield served


STREAM = "ROOKERY_default_JOURNAL"


def numbers(messages: list[StoredMessage]) -> list[int]:
    return [stored.sequence for stored in messages]


class Follower:
    """A running follower and the messages that it has received."""

    def __init__(self, bus: Bus, where: Filter = Filter(), after: int = 0) -> None:  # noqa: B008
        self.seen: list[StoredMessage] = []
        self._task = asyncio.create_task(self._follow(bus, where, after))

    async def _follow(self, bus: Bus, where: Filter, after: int) -> None:
        async for page in bus.feed.follow(where, after):
            self.seen += page

    async def wait_for(self, number: int) -> None:
        await wait_until(lambda: self._task.done() or len(self.seen) >= number)
        if self._task.done():
            await self._task

    async def cancel(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


@asynccontextmanager
async def following(
    bus: Bus,
    where: Filter = Filter(),  # noqa: B008
    after: int = 0,
) -> AsyncIterator[Follower]:
    follower = Follower(bus, where, after)
    try:
        yield follower
    finally:
        await follower.cancel()


def test_a_follower_gets_stored_messages_first_and_then_new_ones(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            writer = Writer()
            await writer.write(bus.journal, *(session(f"s{n}") for n in range(600)))
            async with following(bus) as follower:
                await follower.wait_for(600)
                for _ in range(20):
                    await writer.write(bus.journal, session("live"), session("s1"))
                await follower.wait_for(640)
                assert numbers(follower.seen) == list(range(1, 641))
                assert follower.seen == await gather(bus.journal.scan(Filter()))

    asyncio.run(scenario())


def test_a_follower_starts_behind_its_position(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            writer = Writer()
            await writer.write(bus.journal, *(session(f"s{n}") for n in range(30)))
            assert numbers(await pages(bus.feed.follow(Filter(), 10), 20)) == list(range(11, 31))
            async with following(bus, after=30) as follower:
                await writer.write(bus.journal, session("next"))
                await follower.wait_for(1)
                assert numbers(follower.seen) == [31]

    asyncio.run(scenario())


def test_two_followers_each_get_what_their_filter_selects(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus, realm.bus() as other:
            writer = Writer()
            turn = EntityId("turn", "a")
            async with (
                following(bus) as everything,
                following(other) as everything_elsewhere,
                following(bus, Filter(family="turn")) as turns,
                following(bus, Filter(key="a")) as of_a,
                following(bus, Filter(run="run-7")) as of_run,
            ):
                await writer.write(bus.journal, session("a"))
                for number in range(10):
                    await writer.write(bus.journal, turn, session("b"))
                    special = writer.next(session("c"), body_of("c", f"run-{number}"))
                    writer.learn(await commit(bus.journal, [special]))
                await everything.wait_for(31)
                await everything_elsewhere.wait_for(31)
                await turns.wait_for(10)
                await of_a.wait_for(11)
                await of_run.wait_for(1)
                assert everything.seen == everything_elsewhere.seen
                assert numbers(everything.seen) == list(range(1, 32))
                assert turns.seen == [one for one in everything.seen if one.entity == turn]
                assert {one.entity.key for one in of_a.seen} == {"a"}
                assert numbers(of_run.seen) == [25]

    asyncio.run(scenario())


def test_a_busy_follower_loses_no_message(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            writer = Writer()
            await writer.write(bus.journal, session("first"))
            seen: list[int] = []
            async with asyncio.timeout(30):
                async for page in bus.feed.follow(Filter()):
                    seen += numbers(page)
                    if len(seen) >= 3000:
                        break
                    await writer.write(bus.journal, *(session(f"s{n}") for n in range(100)))
            assert seen == list(range(1, len(seen) + 1))

    asyncio.run(scenario())


def test_a_position_behind_the_end_of_the_journal_is_a_gap(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            await Writer().write(bus.journal, session("a"))
            with pytest.raises(Failed, match=r"FEED_GAP.*ends at 1, before the position 7"):
                await pages(bus.feed.follow(Filter(), 7), 1)

    asyncio.run(scenario())


# --- a real server ------------------------------------------------------------------------------


@asynccontextmanager
async def far_bus(proxy: Proxy) -> AsyncIterator[JetStreamBus]:
    """A bus behind the proxy."""
    bus = JetStreamBus(proxy.url)
    await bus.start()
    try:
        yield bus
    finally:
        await bus.stop()


async def consumers(bus: JetStreamBus) -> list[str]:
    answer = await bus.connection.api(f"CONSUMER.NAMES.{STREAM}")
    return list(answer["consumers"] or ())


def test_a_cancelled_follower_and_a_finished_scan_leave_no_consumer(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            hooks = len(bus.connection.on_reconnect)
            await Writer().write(bus.journal, session("a"))
            async with following(bus) as follower, following(bus, Filter(key="b")):
                await follower.wait_for(1)
                await soon(lambda: _are(bus, 2))
            await pages(bus.feed.follow(Filter()), 1)
            async for _ in bus.journal.scan(Filter()):
                break
            await gather(bus.journal.scan(Filter(key="a")))
            await soon(lambda: _are(bus, 0))
            assert len(bus.connection.on_reconnect) == hooks

    asyncio.run(scenario())


def test_a_scan_of_some_pages_creates_no_consumer(jetstream: JetStreamRealm) -> None:
    """A cluster creates none while it elects, and a node that takes a session over would wait."""

    async def scenario() -> None:
        async with jetstream.bus() as bus:
            await Writer().write(bus.journal, *(session(f"s{n}") for n in range(600)))
            found = list[int]()
            async for page in bus.journal.scan(Filter(), 10):
                found += numbers(page)
                assert not await consumers(bus)
            assert found == list(range(11, 601))

    asyncio.run(scenario())


async def _are(bus: JetStreamBus, number: int) -> bool:
    return len(await consumers(bus)) == number


def test_a_follower_continues_after_its_consumer_is_removed(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            writer = Writer()
            async with following(bus) as follower:
                for number in range(1, 4):
                    await writer.write(bus.journal, session("a"))
                    await follower.wait_for(number)
                    (name,) = await consumers(bus)
                    await bus.connection.api(f"CONSUMER.DELETE.{STREAM}.{name}")
                await writer.write(bus.journal, session("a"))
                await follower.wait_for(4)
                assert numbers(follower.seen) == [1, 2, 3, 4]

    asyncio.run(scenario())


def test_a_follower_survives_cut_connections_and_lost_messages_under_load(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with (
            jetstream.bus() as near,
            proxied(jetstream.server.url) as proxy,
            far_bus(proxy) as far,
        ):
            writer = Writer()
            async with following(far) as follower, following(far, Filter(key="s1")) as of_one:
                for number in range(30):
                    await writer.write(near.journal, *(session(f"s{n}") for n in range(50)))
                    if number % 7 == 3:
                        await follower.wait_for(50 * number - 20)
                        proxy.cut()
                    if number % 7 == 6:
                        _lose_one_delivery(proxy)
                await follower.wait_for(1500)
                await of_one.wait_for(30)
                assert numbers(follower.seen) == list(range(1, 1501))
                assert numbers(of_one.seen) == list(range(2, 1501, 50))
                assert proxy.swallowed

    asyncio.run(scenario())


def _lose_one_delivery(proxy: Proxy) -> None:
    before = len(proxy.swallowed)
    proxy.swallows = lambda body: b"session_id_in" in body and len(proxy.swallowed) == before


def test_a_follower_notices_that_the_last_message_never_arrived(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with (
            jetstream.bus() as near,
            proxied(jetstream.server.url) as proxy,
            far_bus(proxy) as far,
        ):
            writer = Writer()
            async with following(far) as follower:
                await writer.write(near.journal, session("a"))
                await follower.wait_for(1)
                _lose_one_delivery(proxy)
                await writer.write(near.journal, session("a"))
                await follower.wait_for(2)
                assert numbers(follower.seen) == [1, 2]

    asyncio.run(scenario())


def test_a_follower_notices_that_heartbeats_are_missing(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with (
            jetstream.bus() as near,
            proxied(jetstream.server.url) as proxy,
            far_bus(proxy) as far,
        ):
            writer = Writer()
            async with following(far) as follower:
                await writer.write(near.journal, session("a"))
                await follower.wait_for(1)
                proxy.swallows = lambda body: b"Consumer Deleted" in body
                (name,) = await consumers(near)
                await near.connection.api(f"CONSUMER.DELETE.{STREAM}.{name}")
                await wait_until(lambda: proxy.swallowed)
                await writer.write(near.journal, session("a"))
                await follower.wait_for(2)
                assert numbers(follower.seen) == [1, 2]

    asyncio.run(scenario())


def test_one_consumer_requests_large_messages_in_portions(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            writer = Writer()
            await writer.write(bus.journal, session("first"))
            async with following(bus) as follower:
                await follower.wait_for(1)
                before = await consumers(bus)
                large = [writer.next(session(f"s{n}"), body_of("x" * 700_000)) for n in range(40)]
                await commit(bus.journal, large)
                await follower.wait_for(41)
                assert len(follower.seen[-1].body) > 700_000
                assert await consumers(bus) == before

    asyncio.run(scenario())


def test_one_consumer_delivers_many_messages(jetstream: JetStreamRealm) -> None:
    """More messages than are ever requested at once; a replaced consumer would repeat them."""

    async def scenario() -> None:
        async with jetstream.bus() as bus:
            writer = Writer()
            for _ in range(5):
                await writer.write(bus.journal, *(session(f"s{n}") for n in range(1000)))
            async with following(bus) as follower:
                await follower.wait_for(1)
                before = await consumers(bus)
                await follower.wait_for(5000)
                assert numbers(follower.seen) == list(range(1, 5001))
                assert len(before) == 1
                assert await consumers(bus) == before

    asyncio.run(scenario())


@pytest.mark.parametrize("removed", [1, 5])
def test_a_follower_names_what_was_removed_from_the_journal(
    jetstream: JetStreamRealm, removed: int
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            await _replace_journal(jetstream)
            await Writer().write(bus.journal, *(session(f"s{n}") for n in range(10)))
            await jetstream.api(f"STREAM.MSG.DELETE.{STREAM}", {"seq": removed})
            gone = f"FEED_GAP.*messages {removed} to {removed} are missing from the journal"
            follower = Follower(bus)
            with pytest.raises(Failed, match=gone):
                await follower.wait_for(10)
            assert numbers(follower.seen) == list(range(1, removed))
            with pytest.raises(Failed, match=gone):
                await pages(bus.feed.follow(Filter(key="s7")), 1)
            with pytest.raises(Failed, match=gone):
                await gather(bus.journal.scan(Filter()))
            behind = await pages(bus.feed.follow(Filter(), removed), 10 - removed)
            assert numbers(behind) == list(range(removed + 1, 11))
            assert numbers(await pages(bus.feed.follow(Filter(key="s7"), removed), 1)) == [8]

    asyncio.run(scenario())


def test_a_journal_that_was_replaced_is_a_gap(jetstream: JetStreamRealm) -> None:
    """The follower may see the new one while it is still empty."""

    async def scenario() -> None:
        async with jetstream.bus() as bus:
            await Writer().write(bus.journal, *(session(f"s{n}") for n in range(10)))
            follower = Follower(bus)
            await follower.wait_for(10)
            await _replace_journal(jetstream)
            await Writer("other").write(bus.journal, session("a"))
            with pytest.raises(Failed, match=r"FEED_GAP.*ends at [01], before the position 10"):
                await follower.wait_for(11)

    asyncio.run(scenario())


async def _replace_journal(realm: JetStreamRealm) -> None:
    """Replace the journal by a stream whose messages can be removed."""
    admin = Connection(realm.server.admin_url)
    await admin.open()
    info = await admin.api(f"STREAM.INFO.{STREAM}")
    await admin.api(f"STREAM.DELETE.{STREAM}")
    loose = info["config"] | {"deny_delete": False, "deny_purge": False}
    await admin.api(f"STREAM.CREATE.{STREAM}", loose)
    await admin.close()
