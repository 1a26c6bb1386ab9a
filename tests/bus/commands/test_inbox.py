"""The inbox: one suite for both buses."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from rookery.bus.ports import Bus
from rookery.bus.subjects import partition_of
from rookery.schemas.errors import Refused
from tests.bus.deadlines import wait_until
from tests.bus.partition_owners import ALL, Worker, neighbours, opened, submitted
from tests.bus.realms import Realm, readable


def test_commands_of_a_key_are_delivered_in_the_order_of_submission(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            worker = await Worker(bus).open()
            keys = [f"session-{number}" for number in range(12)]
            wanted = [b"%d" % number for number in range(20)]
            await asyncio.gather(*(submitted(bus, key, *wanted) for key in keys))
            await worker.has(len(keys) * len(wanted))
            assert {key: worker.bodies(key) for key in keys} == dict.fromkeys(keys, wanted)

    asyncio.run(scenario())


def test_a_delivery_has_all_that_the_client_sent(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            key = "lease a.b/*>%41 é"
            worker = await opened(bus, key)
            sequence = await bus.inbox.submit(
                "run.now",
                key,
                b"\x00\xff",
                message_id="id-1",
                content_type="application/msgpack",
                mode="steer",
                reply_to="_INBOX.abc.1",
                traceparent="00-4bf92f-00f067-01",
            )
            (delivery,) = await worker.has(1)
            assert (delivery.verb, delivery.key, delivery.id) == ("run.now", key, "id-1")
            assert delivery.body == b"\x00\xff"
            assert delivery.content_type == "application/msgpack"
            assert delivery.mode == "steer"
            assert readable(bus, delivery.reply_to) == "_INBOX.abc.1"
            assert delivery.traceparent == "00-4bf92f-00f067-01"
            assert delivery.attempt == 1
            assert delivery.position is not None
            assert delivery.position.partition == partition_of(key)
            assert delivery.position.sequence == sequence

    asyncio.run(scenario())


def test_a_command_without_an_id_gets_one_that_stays_the_same(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second:
            sequence = await first.inbox.submit("run", "s", b"", message_id="")
            (before,) = await (await opened(first, "s", does=False)).has(1)
            (after,) = await (await opened(second, "s")).has(1)
            assert before.id == after.id == f"inbox.{sequence}"

    asyncio.run(scenario())


def test_one_batch_of_a_partition_is_in_work_at_a_time(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            key, other = neighbours(2)
            await submitted(bus, key, b"1", b"2")
            worker = await opened(bus, key, does=False)
            (first,) = await worker.has_batches(1)
            await submitted(bus, key, b"3")
            await submitted(bus, other, b"4")
            worker.do(first[:1])
            elsewhere = await opened(bus, "elsewhere")
            await submitted(bus, "elsewhere", b"x")
            await elsewhere.has(1)
            assert [d.body for d in first] == [b"1", b"2"]
            assert len(worker.batches) == 1
            worker.do(first[1:])
            _, second = await worker.has_batches(2)
            assert [(d.body, d.attempt) for d in second] == [(b"3", 1), (b"4", 1)]

    asyncio.run(scenario())


def test_a_done_message_is_not_delivered_to_the_next_owner(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second:
            worker = await opened(first, "s")
            await submitted(first, "s", b"1", b"2")
            await worker.has(2)
            await worker.close()
            await submitted(first, "s", b"3")
            (third,) = await (await opened(second, "s")).has(1)
            assert (third.body, third.attempt) == (b"3", 1)

    asyncio.run(scenario())


def test_undone_messages_of_a_dead_owner_are_delivered_again_alone_and_first(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second:
            await submitted(first, "s", b"1", b"2", b"3")
            left = await opened(first, "s", does=False)
            await left.has(3)
            await submitted(second, "s", b"4", b"5")
            worker = await opened(second, "s")
            await worker.has(5)
            alone, rest = worker.batches[:3], worker.batches[3:]
            assert [[d.body for d in batch] for batch in alone] == [[b"1"], [b"2"], [b"3"]]
            assert [d.attempt for d in worker.taken] == [2, 2, 2, 1, 1]
            assert [d.body for batch in rest for d in batch] == [b"4", b"5"]

    asyncio.run(scenario())


def test_a_replaced_owner_gets_no_messages_and_changes_nothing(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second:
            await submitted(first, "s", b"1")
            late = await opened(first, "s", does=False)
            await late.has(1)
            worker = await opened(second, "s", does=False)
            (again,) = await worker.has(1)
            late.do(late.taken)
            await wait_until(first.inbox.partitions_taken_over)
            assert first.inbox.partitions_taken_over() == {partition_of("s")}
            assert second.inbox.partitions_taken_over() == frozenset()
            await submitted(first, "s", b"2")
            worker.do([again])
            await worker.has(2)
            assert worker.bodies() == [b"1", b"2"]
            assert late.bodies() == [b"1"]

    asyncio.run(scenario())


def test_releasing_a_partition_loses_no_message_and_makes_no_suspects(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second:
            await submitted(first, "s", b"1", b"2")
            leaving = await opened(first, "s", does=False)
            await leaving.has(2)
            await leaving.close()
            leaving.do(leaving.taken)
            worker = await opened(second, "s")
            await worker.has(2)
            assert [(d.body, d.attempt) for d in worker.taken] == [(b"1", 1), (b"2", 1)]

    asyncio.run(scenario())


def test_partitions_that_move_between_nodes_keep_the_order_of_every_key(realm: Realm) -> None:
    keys = [f"session-{number}" for number in range(20)]
    wanted = [b"%d" % number for number in range(20)]

    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second:
            left = await Worker(first).open(ALL[:8])
            right = await Worker(second, batches=left.batches).open(ALL[8:])

            async def move() -> None:
                for partition in ALL[4:12]:
                    giver, taker = (left, right) if partition < 8 else (right, left)
                    await giver.close([partition])
                    await taker.open([partition])

            await asyncio.gather(move(), *(submitted(first, key, *wanted) for key in keys))
            await wait_until(lambda: len({(d.key, d.body) for d in left.taken}) == 400)
            for key in keys:
                assert list(dict.fromkeys(left.bodies(key))) == wanted

    asyncio.run(scenario())


def test_one_id_sent_to_two_sessions_at_once_is_two_commands(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            worker = await Worker(bus).open()
            ids = [f"id-{number}" for number in range(25)]
            await asyncio.gather(
                *(
                    bus.inbox.submit("run", key, b"", message_id=message_id)
                    for message_id in ids
                    for key in ("a", "b")
                )
            )
            taken = await worker.has(50)
            assert sorted((d.key, d.id) for d in taken) == sorted((k, i) for k in "ab" for i in ids)

    asyncio.run(scenario())


async def _works_until_it_dies(bus: Bus) -> list[list[tuple[bytes, int]]]:
    """The batches of a node that dies of the poison and does all other commands."""
    worker = await opened(bus, "s", does=False)
    lived = 0
    while True:
        batch = (await worker.has_batches(lived + 1))[lived]
        lived += 1
        if b"poison" not in [d.body for d in batch]:
            worker.do(batch)
            if batch[-1].body != b"also fine":
                continue
        return [[(d.body, d.attempt) for d in batch] for batch in worker.batches]


def test_a_command_that_kills_its_owners_becomes_the_only_dead_letter(realm: Realm) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as nodes:
            bus = await nodes.enter_async_context(realm.bus())
            await submitted(bus, "s", b"fine", b"poison", b"also fine")
            lives = []
            for _ in range(6):
                bus = await nodes.enter_async_context(realm.bus())
                lives.append(await _works_until_it_dies(bus))
            assert lives == [
                [[(b"fine", 1), (b"poison", 1), (b"also fine", 1)]],
                [[(b"fine", 2)], [(b"poison", 2)]],
                [[(b"poison", 3)]],
                [[(b"poison", 4)]],
                [[(b"poison", 5)]],
                [[(b"also fine", 2)]],
            ]
            (letter,) = await bus.inbox.dead_letters()
            assert (letter.id, letter.code) == ("poison", "COMMAND_QUARANTINED")
            assert "5 times" in letter.message

    asyncio.run(scenario())


def test_only_the_command_that_kills_a_node_is_blamed(realm: Realm) -> None:
    innocents = ["a", "b", "c", "d"]
    partitions = {partition_of(key) for key in ("poison", *innocents)}
    assert len(partitions) == 5
    done: set[str] = set()

    async def all_is_well(bus: Bus) -> bool:
        return len(done) == 4 and len(await bus.inbox.dead_letters()) == 1

    async def live(bus: Bus) -> None:
        """Work until the poison is delivered."""
        worker = await Worker(bus, does=False).open(partitions)
        lived = 0
        while not await all_is_well(bus):
            if lived == len(worker.batches):
                await asyncio.sleep(0.002)
                continue
            (command,) = worker.batches[lived]
            if command.key == "poison":
                return
            worker.do([command])
            done.add(command.key)
            lived += 1

    async def scenario() -> None:
        async with AsyncExitStack() as nodes:
            bus = await nodes.enter_async_context(realm.bus())
            for key in ("poison", *innocents):
                await submitted(bus, key, b"")
            await (await Worker(bus, does=False).open(partitions)).has(5)
            for _ in range(5):
                bus = await nodes.enter_async_context(realm.bus())
                await asyncio.wait_for(live(bus), 90)
            assert [letter.key for letter in await bus.inbox.dead_letters()] == ["poison"]
            assert done == set(innocents)

    asyncio.run(scenario())


def test_a_command_needs_a_key(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            with pytest.raises(Refused, match="INVALID_SUBJECT"):
                await bus.inbox.submit("run", "", b"", message_id="x")
            with pytest.raises(Refused, match="INVALID_SUBJECT"):
                await bus.inbox.submit("", "s", b"", message_id="x")

    asyncio.run(scenario())
