"""Workers that are asked after calls: one suite for both buses, then what only a real server has.

Asking calls an attempt off where it has not begun; the worker refuses it from then on.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from rookery.bus.nats.frames import Message
from rookery.bus.workers.protocol import Parcels
from rookery.schemas.errors import Failed
from rookery.schemas.worker_protocol import Answered, CallState, CrewSaid, NotBegun, WorkerSaid
from tests.bus.deadlines import wait_until
from tests.bus.realms import JetStreamRealm, Realm
from tests.bus.workers.test_tool_workers import JOB, LARGE, hand

# --- both buses -----------------------------------------------------------------------------------


def test_a_worker_refuses_a_lower_attempt_than_it_has_seen(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus, hand(realm) as anna:
            assert await bus.crews.call(replace(JOB, attempt=2)) == Answered(b"anna")
            late = await bus.crews.call(replace(JOB, attempt=1))
            assert late == NotBegun("attempt 2 of the call came before attempt 1", called_off=True)
            assert await bus.crews.call(replace(JOB, attempt=3)) == Answered(b"anna")
            assert [job.attempt for job in anna.jobs] == [2, 3]

    asyncio.run(scenario())


def test_an_attempt_that_no_worker_has_begun_is_called_off_with_all_of_them(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus, hand(realm, "anna") as anna, hand(realm, "bert") as bert:
            said = await bus.crews.ask_after("shop", "call-1", 2)
            assert said.answer is None
            assert {one.worker: one.state for one in said.workers} == {
                "anna": CallState.NOT_BEGUN,
                "bert": CallState.NOT_BEGUN,
            }
            late = [await bus.crews.call(JOB) for _ in range(10)]
            assert late == [NotBegun("attempt 2 of the call was called off", called_off=True)] * 10
            assert anna.jobs == bert.jobs == []
            again = [await bus.crews.call(replace(JOB, attempt=3)) for _ in range(10)]
            assert all(isinstance(end, Answered) for end in again)

    asyncio.run(scenario())


def test_another_node_hears_that_a_call_runs_and_then_its_answer(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus, realm.bus() as other, hand(realm, answers=False) as anna:
            call = asyncio.ensure_future(bus.crews.call(JOB))
            (job,) = await anna.has(1)
            said = await other.crews.ask_after("shop", "call-1", 2)
            assert [(one.worker, one.state) for one in said.workers] == [
                ("anna", CallState.RUNNING)
            ]
            other.crews.cancel("call-1")
            await wait_until(lambda: anna.unwanted == [job.id])
            await anna.bench.answer(job, b"done")
            assert await call == Answered(b"done")
            ended = await other.crews.ask_after("shop", "call-1", 2)
            assert ended.answer == b"done"
            assert ended.workers[0].state is CallState.ENDED
            below = await other.crews.ask_after("shop", "call-1", 1)
            assert (below.answer, below.workers[0].state) == (None, CallState.UNKNOWN)

    asyncio.run(scenario())


def test_a_worker_that_declined_or_gave_a_job_up_says_so(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus, hand(realm, answers=False) as anna:
            for number, state in ((0, CallState.NOT_BEGUN), (1, CallState.UNKNOWN)):
                job = replace(JOB, call_id=f"call-{number}")
                call = asyncio.ensure_future(bus.crews.call(job))
                taken = (await anna.has(number + 1))[number]
                (anna.bench.abandon if number else anna.bench.decline)(taken, "why")
                await call
                said = await bus.crews.ask_after("shop", job.call_id, 2)
                assert (said.answer, said.workers[0].state) == (None, state)

    asyncio.run(scenario())


def test_a_worker_that_was_started_anew_remembers_nothing_from_before(realm: Realm) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with realm.bus() as bus:
            async with hand(realm, "anna"):
                await bus.crews.call(JOB)
            await asyncio.sleep(0.05)
            began_s = loop.time()
            async with hand(realm, "anna-2"):
                (said,) = (await bus.crews.ask_after("shop", "call-1", 2)).workers
            assert (said.worker, said.state) == ("anna-2", CallState.NOT_BEGUN)
            assert said.remembers_ms <= 1_000 * (loop.time() - began_s)

    asyncio.run(scenario())


def test_where_there_is_no_worker_nothing_is_said(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            assert await bus.crews.ask_after("shop", "call-1", 1) == CrewSaid()

    asyncio.run(scenario())


# --- a real server --------------------------------------------------------------------------------


def test_a_large_answer_is_kept_for_another_node_too(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with (
            jetstream.bus() as bus,
            jetstream.bus() as other,
            hand(jetstream, answers=False) as anna,
        ):
            call = asyncio.ensure_future(bus.crews.call(JOB))
            await anna.bench.answer((await anna.has(1))[0], LARGE)
            await call
            assert (await other.crews.ask_after("shop", "call-1", 2)).answer == LARGE

    asyncio.run(scenario())


def test_an_attempt_is_called_off_also_while_its_arguments_are_fetched(
    jetstream: JetStreamRealm, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        fetching, fetched = asyncio.Event(), asyncio.Event()
        unpacked = Parcels.unpacked

        async def slow(parcels: Parcels, message: Message) -> bytes:
            if parcels is anna.bench._parcels:  # type: ignore[attr-defined]
                fetching.set()
                await fetched.wait()
            return await unpacked(parcels, message)

        monkeypatch.setattr(Parcels, "unpacked", slow)
        async with jetstream.bus() as bus, hand(jetstream) as anna:
            call = asyncio.ensure_future(bus.crews.call(replace(JOB, body=LARGE)))
            await fetching.wait()
            (said,) = (await bus.crews.ask_after("shop", "call-1", 2)).workers
            assert said.state is CallState.NOT_BEGUN
            fetched.set()
            assert await call == NotBegun("attempt 2 of the call was called off", called_off=True)
            assert anna.jobs == []

    asyncio.run(scenario())


def test_a_worker_that_knows_no_such_questions_is_one_that_does_not_know(
    jetstream: JetStreamRealm,
) -> None:
    """One in another language, or an older one: it reads the names of jobs, as ever."""

    async def scenario() -> None:
        async with jetstream.bus() as bus, jetstream.stock() as stock:
            asked: list[Any] = []

            async def health(message: Any) -> None:
                asked.append(json.loads(message.data)["jobs"])
                await message.respond(b'{"worker": "carl", "running": [{"id": "x"}]}')

            async def nonsense(message: Any) -> None:
                await message.respond(b"[1")

            await stock.subscribe("rookery.default.crew.shop.health", cb=health)
            await stock.subscribe("rookery.default.crew.shop.health", cb=nonsense)
            await stock.flush()
            said = await bus.crews.ask_after("shop", "call-1", 2)
            assert said == CrewSaid(workers=(WorkerSaid(worker="carl"),))
            assert asked == [[]]

    asyncio.run(scenario())


def test_without_a_connection_the_silence_of_workers_says_nothing(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            crews = bus.crews
        with pytest.raises(Failed, match="SERVER_UNREACHABLE"):
            await crews.ask_after("shop", "call-1", 2)

    asyncio.run(scenario())
