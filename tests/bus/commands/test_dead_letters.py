"""Dead letters, and the rules of redelivery that lead to them, on both buses."""

from __future__ import annotations

import asyncio

import pytest

from rookery.bus.commands.redelivery import PartitionCursor, PreviousOwnerState, SuspectGate
from rookery.bus.ports import Bus, DeadLetter, Delivery, Timer
from rookery.schemas.errors import Refused
from tests.bus.partition_owners import opened
from tests.bus.realms import JetStreamRealm, Realm, readable


async def _delivered(bus: Bus) -> Delivery:
    """A delivered command with every header set."""
    await bus.inbox.submit(
        "run",
        "key with.dots",
        b"\x00 body",
        message_id="id-1",
        content_type="application/msgpack",
        mode="passive",
        reply_to="_INBOX.a.1",
        traceparent="00-4bf92f-00f067-01",
    )
    (delivery,) = await (await opened(bus, "key with.dots", does=False)).has(1)
    return delivery


def test_a_dead_letter_has_the_command_and_the_reason(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            delivery = await _delivered(bus)
            reason = "it broke:\r\n  line 2\t" + "é" * 600
            number = await bus.inbox.dead_letter(delivery, "NODE_FAILED", reason)
            (letter,) = await bus.inbox.dead_letters()
            assert letter == DeadLetter(
                number=number,
                verb="run",
                key="key with.dots",
                id="id-1",
                code="NODE_FAILED",
                message=letter.message,
                body=b"\x00 body",
                content_type="application/msgpack",
                mode="passive",
                reply_to=letter.reply_to,
                traceparent="00-4bf92f-00f067-01",
                buried_at_ms=letter.buried_at_ms,
            )
            assert letter.message == ("it broke:   line 2 " + "é" * 600)[:500]
            assert letter.buried_at_ms > 0
            assert readable(bus, letter.reply_to) == "_INBOX.a.1"

    asyncio.run(scenario())


def test_adding_a_command_again_makes_no_second_dead_letter(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            delivery = await _delivered(bus)
            first = await bus.inbox.dead_letter(delivery, "NODE_FAILED", "before the crash")
            assert await bus.inbox.dead_letter(delivery, "NODE_FAILED", "after it") == first
            assert len(await bus.inbox.dead_letters()) == 1

    asyncio.run(scenario())


def test_requests_with_the_same_id_have_separate_dead_letters(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            for key in ("a", "b", "b"):
                await bus.inbox.dead_letter(Delivery("run", key, "same", b""), "NODE_FAILED", "")
            letters = await bus.inbox.dead_letters()
            assert [(letter.key, letter.id) for letter in letters] == [
                ("a", "same"),
                ("b", "same"),
                ("b", "same"),
            ]
            assert sorted({letter.number for letter in letters}) == [x.number for x in letters]

    asyncio.run(scenario())


def test_a_retried_dead_letter_is_delivered_unchanged(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            delivery = await _delivered(bus)
            number = await bus.inbox.dead_letter(delivery, "NODE_FAILED", "")
            assert delivery.position is not None
            await bus.inbox.close(delivery.position.partition)
            worker = await opened(bus, delivery.key)
            await worker.has(1)
            await bus.inbox.retry_dead_letter(number)
            _, again = await worker.has(2)
            for name in ("verb", "key", "id", "body", "content_type", "mode", "reply_to"):
                assert getattr(again, name) == getattr(delivery, name)
            assert again.traceparent == delivery.traceparent
            assert again.attempt == 1
            assert await bus.inbox.dead_letters() == []

    asyncio.run(scenario())


def test_a_retried_timer_is_still_a_timer(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            worker = await opened(bus, "s")
            await bus.timers.arm(Timer(id="t", due_ms=5, verb="wake", key="s", body=b"b"))
            (fired,) = await worker.has(1)
            await bus.inbox.retry_dead_letter(await bus.inbox.dead_letter(fired, "NODE_FAILED", ""))
            _, again = await worker.has(2)
            assert (again.verb, again.key, again.body) == ("wake", "s", b"b")
            assert again.id == "timer/t/5"
            assert again.position is not None
            assert again.position.source == "timers"

    asyncio.run(scenario())


def test_a_dropped_dead_letter_is_deleted(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            numbers = [
                await bus.inbox.dead_letter(Delivery("run", key, key, b""), "NODE_FAILED", "")
                for key in ("a", "b", "c")
            ]
            await bus.inbox.drop_dead_letter(numbers[1])
            assert [letter.key for letter in await bus.inbox.dead_letters()] == ["a", "c"]
            for number in (numbers[1], 4711, 0, -1):
                with pytest.raises(Refused, match="DEAD_LETTER_NOT_FOUND"):
                    await bus.inbox.drop_dead_letter(number)
                with pytest.raises(Refused, match="DEAD_LETTER_NOT_FOUND"):
                    await bus.inbox.retry_dead_letter(number)

    asyncio.run(scenario())


def test_the_largest_command_of_the_inbox_fits_a_dead_letter(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            body = b"x" * (1_040_384 - 100)
            await bus.inbox.submit("run", "s", body, message_id="large")
            (large,) = await (await opened(bus, "s", does=False)).has(1)
            await bus.inbox.dead_letter(large, "NODE_FAILED", "é" * 2000)
            (letter,) = await bus.inbox.dead_letters()
            assert letter.body == body

    asyncio.run(scenario())


# The message that is to blame: the cursor, without a bus.


def test_only_the_first_undone_message_counts_a_death() -> None:
    began = PreviousOwnerState(began=10, floor=10, delivered=14)
    cursor = PartitionCursor.after(began)
    assert (cursor.floor, cursor.suspects_to, cursor.must_deliver_alone) == (10, 14, True)
    assert [cursor.attempt(sequence) for sequence in (11, 14, 15)] == [2, 2, 1]
    again = PartitionCursor.after(
        PreviousOwnerState(began=10, floor=10, delivered=11, suspects_to=14, deaths=1)
    )
    assert again.attempt(11) == 3
    again.mark_done(11)
    assert again.attempt(12) == 2


def test_a_suspect_behind_a_dead_one_has_its_own_count() -> None:
    cursor = PartitionCursor.after(
        PreviousOwnerState(began=10, floor=11, delivered=12, suspects_to=14, deaths=3)
    )
    assert cursor.attempt(12) == 3
    assert cursor.suspects_to == 14


def test_an_orderly_release_makes_no_suspects() -> None:
    cursor = PartitionCursor.after(
        PreviousOwnerState(began=10, floor=10, delivered=14, orderly=True)
    )
    assert not cursor.must_deliver_alone
    assert cursor.attempt(11) == 1


def test_suspects_take_turns_and_a_user_that_exits_loses_its_turn() -> None:
    gate, went = SuspectGate(), []
    for name in ("a", "b", "a", "c", "b"):
        gate.enter(name, lambda name=name: went.append(name))  # type: ignore[misc]
    assert went == ["a"]
    gate.exit("b")
    gate.exit("a")
    assert went == ["a", "c"]
    gate.exit("b")
    gate.exit("c")
    gate.enter("b", lambda: went.append("b"))
    assert went == ["a", "c", "b"]


def test_the_death_of_an_idle_owner_makes_no_suspects() -> None:
    cursor = PartitionCursor.after(
        PreviousOwnerState(began=0, floor=20, delivered=20, suspects_to=7)
    )
    assert not cursor.must_deliver_alone
    assert cursor.attempt(21) == 1
