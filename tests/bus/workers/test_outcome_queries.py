"""Workers that are asked after calls: one suite for both buses, then what only a real server has.

PollingNode calls an attempt off where it has not begun; the worker refuses it from then on.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace

from rookery.bus.nats.batch_client import Message
from rookery.bus.workers.protocol import LargeBodies
from rookery.schemas.errors import Failed
from rookery.schemas.worker_protocol import (
    AttemptState,
    JobAnswered,
    JobNotStarted,
    WorkerReport,
    WorkerReports,
)
from tests.bus.deadlines import wait_until
from tests.bus.realms import JetStreamRealm, Realm
from tests.bus.workers.test_tool_workers import JOB, LARGE, fake_worker

# --- both buses -----------------------------------------------------------------------------------


def test_a_worker_refuses_a_lower_attempt_than_it_has_seen(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus, fake_worker(realm) as anna:
            assert await bus.tool_workers.call(replace(JOB, attempt=2)) == JobAnswered(b"anna")
            late = await bus.tool_workers.call(replace(JOB, attempt=1))
            assert late == JobNotStarted(
                "attempt 2 of the call came before attempt 1", cancelled=True
            )
            assert await bus.tool_workers.call(replace(JOB, attempt=3)) == JobAnswered(b"anna")
            assert [job.attempt for job in anna.jobs] == [2, 3]

    asyncio.run(scenario())


def test_an_attempt_that_no_worker_has_begun_is_called_off_with_all_of_them(realm: Realm) -> None:
    async def scenario() -> None:
        async with (
            realm.bus() as bus,
            fake_worker(realm, "anna") as anna,
            fake_worker(realm, "bert") as bert,
        ):
            said = await bus.tool_workers.query_attempt("shop", "call-1", 2)
            assert said.answer is None
            assert {one.worker: one.state for one in said.workers} == {
                "anna": AttemptState.NOT_STARTED,
                "bert": AttemptState.NOT_STARTED,
            }
            late = [await bus.tool_workers.call(JOB) for _ in range(10)]
            assert (
                late == [JobNotStarted("attempt 2 of the call was cancelled", cancelled=True)] * 10
            )
            assert anna.jobs == bert.jobs == []
            again = [await bus.tool_workers.call(replace(JOB, attempt=3)) for _ in range(10)]
            assert all(isinstance(end, JobAnswered) for end in again)

    asyncio.run(scenario())


def test_another_node_hears_that_a_call_runs_and_then_its_answer(realm: Realm) -> None:
    async def scenario() -> None:
        async with (
            realm.bus() as bus,
            realm.bus() as other,
            fake_worker(realm, answers=False) as anna,
        ):
            call = asyncio.ensure_future(bus.tool_workers.call(JOB))
            (job,) = await anna.has(1)
            said = await other.tool_workers.query_attempt("shop", "call-1", 2)
            assert [(one.worker, one.state) for one in said.workers] == [
                ("anna", AttemptState.RUNNING)
            ]
            other.tool_workers.cancel("call-1")
            await wait_until(lambda: anna.unwanted == [job.id])
            await anna.endpoint.reply(job, b"done")
            assert await call == JobAnswered(b"done")
            ended = await other.tool_workers.query_attempt("shop", "call-1", 2)
            assert ended.answer == b"done"
            assert ended.workers[0].state is AttemptState.ENDED
            below = await other.tool_workers.query_attempt("shop", "call-1", 1)
            assert (below.answer, below.workers[0].state) == (None, AttemptState.UNKNOWN)

    asyncio.run(scenario())


def test_a_worker_reports_a_rejected_or_abandoned_job(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus, fake_worker(realm, answers=False) as anna:
            for number, state in ((0, AttemptState.NOT_STARTED), (1, AttemptState.UNKNOWN)):
                job = replace(JOB, call_id=f"call-{number}")
                call = asyncio.ensure_future(bus.tool_workers.call(job))
                taken = (await anna.has(number + 1))[number]
                (anna.endpoint.report_unknown if number else anna.endpoint.reject)(taken, "why")
                await call
                said = await bus.tool_workers.query_attempt("shop", job.call_id, 2)
                assert (said.answer, said.workers[0].state) == (None, state)

    asyncio.run(scenario())


def test_a_worker_that_was_started_anew_remembers_nothing_from_before(realm: Realm) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with realm.bus() as bus:
            async with fake_worker(realm, "anna"):
                await bus.tool_workers.call(JOB)
            await asyncio.sleep(0.05)
            began_s = loop.time()
            async with fake_worker(realm, "anna-2"):
                (said,) = (await bus.tool_workers.query_attempt("shop", "call-1", 2)).workers
            assert (said.worker, said.state) == ("anna-2", AttemptState.NOT_STARTED)
            assert said.remembers_ms <= 1_000 * (loop.time() - began_s)

    asyncio.run(scenario())


def test_without_a_worker_there_are_no_reports(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            assert await bus.tool_workers.query_attempt("shop", "call-1", 1) == WorkerReports()

    asyncio.run(scenario())


# --- a real server --------------------------------------------------------------------------------


def test_a_large_answer_is_kept_for_another_node_too(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with (
            jetstream.serving_bus() as bus,
            jetstream.bus() as other,
            fake_worker(jetstream, answers=False) as anna,
        ):
            call = asyncio.ensure_future(bus.tool_workers.call(JOB))
            await anna.endpoint.reply((await anna.has(1))[0], LARGE)
            await call
            assert (await other.tool_workers.query_attempt("shop", "call-1", 2)).answer == LARGE

    asyncio.run(scenario())


def test_an_attempt_is_called_off_also_while_its_arguments_are_fetched(
    jetstream: JetStreamRealm, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        fetching, fetched = asyncio.Event(), asyncio.Event()
        unpacked = LargeBodies.unpack

        async def slow(bodies: LargeBodies, message: Message) -> bytes:
            if bodies is anna.endpoint._large_bodies:  # type: ignore[attr-defined]
                fetching.set()
                await fetched.wait()
            return await unpacked(bodies, message)

        monkeypatch.setattr(LargeBodies, "unpack", slow)
        async with jetstream.serving_bus() as bus, fake_worker(jetstream) as anna:
            call = asyncio.ensure_future(bus.tool_workers.call(replace(JOB, body=LARGE)))
            await fetching.wait()
            (said,) = (await bus.tool_workers.query_attempt("shop", "call-1", 2)).workers
            assert said.state is AttemptState.NOT_STARTED
            fetched.set()
            assert await call == JobNotStarted(
                "attempt 2 of the call was cancelled", cancelled=True
            )
            assert anna.jobs == []

    asyncio.run(scenario())


def test_a_worker_that_knows_no_such_questions_is_one_that_does_not_know(
    jetstream: JetStreamRealm,
) -> None:
    """A worker in another language, or an older one: it reads only the names of jobs."""

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
            said = await bus.tool_workers.query_attempt("shop", "call-1", 2)
            assert said == WorkerReports(workers=(WorkerReport(worker="carl"),))
            assert asked == [[]]

    asyncio.run(scenario())


def test_without_a_connection_the_silence_of_workers_proves_nothing(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with jetstream.bus() as bus:
            tool_workers = bus.tool_workers
        with pytest.raises(Failed, match="SERVER_UNREACHABLE"):
            await tool_workers.query_attempt("shop", "call-1", 2)

    asyncio.run(scenario())
