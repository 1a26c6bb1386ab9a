"""Timers: one suite for both buses, then the faults of a real server."""

from __future__ import annotations

import asyncio

import pytest

from rookery.bus.clock import SystemClock
from rookery.bus.commands.inbox import DUE_MS_MAX
from rookery.bus.ports import Bus, Timer
from rookery.bus.subjects import partition_of
from rookery.schemas.errors import Refused
from tests.bus.deadlines import wait_until
from tests.bus.partition_owners import Worker, opened, submitted
from tests.bus.realms import JetStreamRealm, MemoryRealm, Realm

FAR_MS = 4_102_444_800_000
"""The year 2100."""


def _now_ms(realm: Realm) -> int:
    return realm.now_ms if isinstance(realm, MemoryRealm) else SystemClock().now_ms()


def _timer(timer_id: str, due_ms: int, body: bytes = b"", key: str = "s") -> Timer:
    return Timer(id=timer_id, due_ms=due_ms, verb="wake", key=key, body=body)


def test_a_due_timer_is_delivered_through_the_inbox_of_its_key(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            key = "lease a.b/é"
            worker = await opened(bus, key)
            due_ms = _now_ms(realm) + 300
            await bus.timers.arm(_timer("refresh/a.b", due_ms, b"\x00\xff", key))
            await submitted(bus, key, b"meanwhile")
            await worker.has(1)
            await realm.elapse(1)
            early, fired = await worker.has(2)
            assert early.body == b"meanwhile"
            assert _now_ms(realm) >= due_ms
            assert (fired.verb, fired.key, fired.body) == ("wake", key, b"\x00\xff")
            assert fired.id == f"timer/refresh/a.b/{due_ms}"
            assert (fired.attempt, fired.reply_to) == (1, "")
            assert fired.position is not None
            assert fired.position.source == "timers"
            assert fired.position.partition == partition_of(key)

    asyncio.run(scenario())


def test_a_timer_due_in_the_past_fires_at_once(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            worker = await opened(bus, "s")
            past_ms = _now_ms(realm) - 5000
            await bus.timers.arm(_timer("a", past_ms))
            await bus.timers.arm(_timer("b", 0))
            await worker.has(2)
            assert sorted(d.id for d in worker.taken) == sorted(["timer/b/0", f"timer/a/{past_ms}"])

    asyncio.run(scenario())


async def _ids_until_sentinel(realm: Realm, bus: Bus, worker: Worker) -> list[str]:
    """The ids of deliveries until a last timer fires."""
    due_ms = _now_ms(realm) + 400
    await bus.timers.arm(_timer("sentinel", due_ms))
    await realm.elapse(1)
    await wait_until(lambda: f"timer/sentinel/{due_ms}" in [d.id for d in worker.taken])
    return [d.id for d in worker.taken if "sentinel" not in d.id]


def test_arming_again_replaces_a_timer(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            worker = await opened(bus, "s")
            soon_ms = _now_ms(realm) + 200
            await bus.timers.arm(_timer("later", soon_ms))
            await bus.timers.arm(_timer("later", FAR_MS))
            await bus.timers.arm(_timer("sooner", FAR_MS, b"old"))
            await bus.timers.arm(_timer("sooner", soon_ms, b"new"))
            ids = await _ids_until_sentinel(realm, bus, worker)
            assert ids == [f"timer/sooner/{soon_ms}"]
            assert b"new" in worker.bodies()

    asyncio.run(scenario())


def test_a_cancelled_timer_never_fires(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            worker = await opened(bus, "s")
            soon_ms = _now_ms(realm) + 200
            for timer_id in ("a.b", "a", "c"):
                await bus.timers.arm(_timer(timer_id, soon_ms))
            await bus.timers.cancel("a")
            await bus.timers.cancel("a.b")
            await bus.timers.cancel("never armed")
            assert await _ids_until_sentinel(realm, bus, worker) == [f"timer/c/{soon_ms}"]
            await bus.timers.cancel("c")

    asyncio.run(scenario())


def test_a_timer_that_fires_twice_has_the_same_id_twice(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            worker = await opened(bus, "s")
            for _ in range(2):
                taken = len(worker.taken)
                await bus.timers.arm(_timer("t", 7))
                await worker.has(taken + 1)
            assert [d.id for d in worker.taken] == ["timer/t/7", "timer/t/7"]

    asyncio.run(scenario())


def test_fired_timers_and_commands_are_delivered_in_one_order(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second:
            await submitted(first, "s", b"1")
            left = await opened(first, "s", does=False)
            await left.has(1)
            await first.timers.arm(_timer("t", 0, b"2"))
            await submitted(first, "s", b"3")
            worker = await opened(second, "s")
            await worker.has(3)
            assert worker.batches[0][0].attempt == 2
            assert sorted(worker.bodies()) == [b"1", b"2", b"3"]
            assert left.bodies() == [b"1"]

    asyncio.run(scenario())


def test_commands_before_a_due_timer_are_delivered_before_it_to_every_owner(
    realm: Realm,
) -> None:
    async def scenario() -> None:
        async with realm.bus() as first, realm.bus() as second:
            due_ms = _now_ms(realm) + 300
            await submitted(first, "s", b"in time")
            await first.timers.arm(_timer("t", due_ms, b"due"))
            await realm.elapse(1)
            left = await (await opened(first, "s", does=False)).has(1)
            taken = await (await opened(second, "s")).has(2)
            in_time, due = taken
            assert [one.body for one in taken] == [b"in time", b"due"]
            assert in_time.arrived_ms < due_ms <= due.arrived_ms
            assert left[0].arrived_ms == in_time.arrived_ms

    asyncio.run(scenario())


@pytest.mark.parametrize("due_ms", [-1, DUE_MS_MAX + 1, 253_402_300_800_000])
def test_a_due_time_out_of_range_is_refused(realm: Realm, due_ms: int) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            with pytest.raises(Refused, match="TIMER_INVALID"):
                await bus.timers.arm(_timer("t", due_ms))

    asyncio.run(scenario())


def test_a_timer_whose_id_cannot_be_a_command_id_is_refused(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            for timer in (_timer("a b", 0), _timer("t" * 200, 0), _timer("t", 0, key="")):
                with pytest.raises(Refused):
                    await bus.timers.arm(timer)

    asyncio.run(scenario())


def test_the_latest_due_time_does_not_fire_at_once(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            worker = await opened(bus, "s")
            await bus.timers.arm(_timer("last", DUE_MS_MAX))
            assert await _ids_until_sentinel(jetstream, bus, worker) == []
            state = await jetstream.state("ROOKERY_default_TIMERS")
            assert state.messages == 2  # The armed one and the sentinel, fired.

    asyncio.run(scenario())


def test_timers_survive_a_killed_server(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            worker = await opened(bus, "s")
            now_ms = _now_ms(jetstream)
            await bus.timers.arm(_timer("while-down", now_ms + 50))
            await bus.timers.arm(_timer("after", now_ms + 1500))
            await bus.timers.arm(_timer("cancelled", now_ms + 1400))
            await asyncio.to_thread(jetstream.server.kill)
            await wait_until(lambda: _now_ms(jetstream) > now_ms + 50)
            await asyncio.to_thread(jetstream.server.start)
            await bus.timers.cancel("cancelled")
            await worker.has(2)
            ids = [f"timer/while-down/{now_ms + 50}", f"timer/after/{now_ms + 1500}"]
            assert list(dict.fromkeys(d.id for d in worker.taken)) == ids

    asyncio.run(scenario())


def test_a_timer_too_large_for_the_inbox_cannot_be_armed(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            worker = await opened(bus, "s")
            with pytest.raises(Refused, match="PAYLOAD_TOO_LARGE"):
                await bus.timers.arm(_timer("large", 0, b"x" * 1_040_000))
            await bus.timers.arm(_timer("fits", 0, b"x" * 1_030_000))
            (fired,) = await worker.has(1)
            assert fired.id == "timer/fits/0"

    asyncio.run(scenario())


def test_a_timer_that_fires_into_a_full_inbox_waits_for_room(jetstream: JetStreamRealm) -> None:
    stream = "ROOKERY_default_INBOX"

    async def scenario() -> None:
        async with jetstream.bus() as bus:
            config = (await bus.connection.api(f"STREAM.INFO.{stream}"))["config"]
            await bus.connection.api(f"STREAM.UPDATE.{stream}", {**config, "max_msgs": 1})
            await submitted(bus, "s", b"fills it")
            for number in range(3):
                await bus.timers.arm(_timer(f"t{number}", 0))

            async def all_fired() -> bool:
                state = await jetstream.state("ROOKERY_default_TIMERS")
                return bool(state.messages == 3 and state.last_seq > 3)

            await jetstream.soon(all_fired)
            worker = await opened(bus, "s")
            await bus.connection.api(f"STREAM.UPDATE.{stream}", {**config, "max_msgs": -1})
            await worker.has(4)
            assert worker.bodies()[0] == b"fills it"
            assert {d.id for d in worker.taken[1:]} == {f"timer/t{n}/0" for n in range(3)}

    asyncio.run(scenario())
