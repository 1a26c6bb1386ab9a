"""Tool workers: one suite for both buses, then failures of a real server.

A node's side (``ToolWorkers``) and a worker's (``WorkerEndpoint``) are always different members of
the realm.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from rookery.actors.tools import ToolCallContext, ToolCredential
from rookery.actors.tools.functions.remote_host import RemoteToolHost
from rookery.bus.memory.workers import MemoryWorkerEndpoint
from rookery.bus.nats.connection import Connection
from rookery.bus.ports import WorkerEndpoint
from rookery.bus.reads import NodeBlobs
from rookery.bus.roles import Role
from rookery.bus.storage.blobs import JetStreamBlobs
from rookery.bus.storage.bucket import Bucket
from rookery.bus.subjects import Subjects
from rookery.bus.workers.client import NatsToolWorkers
from rookery.bus.workers.server import NatsWorkerEndpoint
from rookery.schemas.calls import Capability
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Refused
from rookery.schemas.worker_protocol import (
    Job,
    JobAnswered,
    JobCredential,
    JobNotStarted,
    JobOutcomeUnknown,
    ServedTool,
    WorkerCatalogue,
)
from tests.bus.deadlines import wait_until
from tests.bus.realms import JetStreamRealm, MemoryRealm, Realm

SUBJECTS = Subjects("default")
ANSWERS = "rookery.default.result.shop.stock"
"""Where a worker of the surface may answer."""
LOST = "rookery.default.result.shop.lost"
JOB = Job(
    surface="shop",
    tool="price",
    body=b'{"args":["tea"],"kwargs":{}}',
    left_ms=10_000,
    call_id="call-1",
    idempotency_key="key-1",
    attempt=2,
    session_id="s1",
    run_id="run-1",
    schema_digest="abc",
    traceparent="00-1-2-03",
    credential=JobCredential("canary \u00fc\r\n", "Basic"),
)


class FakeWorker:
    """A worker that collects its jobs, or answers at once."""

    def __init__(self, endpoint: WorkerEndpoint, name: str, *, answers: bool) -> None:
        self.endpoint, self.name, self._answers = endpoint, name, answers
        self.jobs: list[Job] = []
        self.unwanted: list[str] = []
        self._answering: set[asyncio.Task[None]] = set()

    async def open(self, *tools: str) -> FakeWorker:
        served = tuple(ServedTool(capability=Capability(name=t, description="")) for t in tools)
        await self.endpoint.open(
            WorkerCatalogue(worker=self.name, tools=served), self.take, self.unwanted.append
        )
        return self

    def take(self, job: Job) -> None:
        self.jobs.append(job)
        if self._answers:
            self._answering.add(asyncio.ensure_future(self.endpoint.reply(job, self.name.encode())))

    async def has(self, count: int) -> list[Job]:
        await wait_until(lambda: len(self.jobs) >= count)
        return self.jobs


@asynccontextmanager
async def fake_worker(
    realm: Realm,
    name: str = "anna",
    *tools: str,
    answers: bool = True,
    surface: str = "shop",
) -> AsyncIterator[FakeWorker]:
    """Start another worker; it stops without a message."""
    if isinstance(realm, MemoryRealm):
        endpoint = MemoryWorkerEndpoint(realm.server.realm("default").worker_registry, surface)
        yield await FakeWorker(endpoint, name, answers=answers).open(*(tools or ["price"]))
        await endpoint.close()
        return
    assert isinstance(realm, JetStreamRealm)
    async with connection(realm, surface) as connected:
        endpoint = NatsWorkerEndpoint(connected, SUBJECTS, NodeBlobs(connected, SUBJECTS), surface)
        yield await FakeWorker(endpoint, name, answers=answers).open(*(tools or ["price"]))


@asynccontextmanager
async def connection(realm: JetStreamRealm, surface: str = "") -> AsyncIterator[Connection]:
    """Of a node, or of the worker of a surface."""
    role = Role.WORKER if surface else Role.NODE
    connected = Connection(realm.server.url_for(role, surface=surface))
    await connected.open()
    try:
        yield connected
    finally:
        await connected.close()


# --- both buses -----------------------------------------------------------------------------------


def test_a_job_comes_whole_and_its_answer_goes_back(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus, fake_worker(realm, "anna") as anna:
            assert await bus.tool_workers.call(JOB) == JobAnswered(b"anna")
            (job,) = anna.jobs
            assert job.id
            assert replace(job, id="") == JOB

    asyncio.run(scenario())


def test_workers_of_a_surface_share_its_jobs_and_each_job_has_one(realm: Realm) -> None:
    async def scenario() -> None:
        async with (
            realm.bus() as bus,
            fake_worker(realm, "anna") as anna,
            fake_worker(realm, "bert") as bert,
        ):
            ends = await asyncio.gather(*(bus.tool_workers.call(JOB) for _ in range(60)))
            assert sorted(end.body for end in ends if isinstance(end, JobAnswered)) == sorted(
                [b"anna"] * len(anna.jobs) + [b"bert"] * len(bert.jobs)
            )
            assert len(anna.jobs) + len(bert.jobs) == 60
            assert anna.jobs
            assert bert.jobs

    asyncio.run(scenario())


def test_an_unserved_tool_is_reported_as_not_started_at_once(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus, fake_worker(realm, "anna", "price"), asyncio.timeout(5):
            for job in (replace(JOB, tool="cost"), replace(JOB, surface="mill")):
                end = await bus.tool_workers.call(replace(job, left_ms=60_000))
                assert isinstance(end, JobNotStarted)
                assert end.no_worker

    asyncio.run(scenario())


def test_a_worker_may_reject_a_job_or_report_an_unknown_outcome(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus, fake_worker(realm, answers=False) as anna:
            first = asyncio.ensure_future(bus.tool_workers.call(JOB))
            anna.endpoint.reject((await anna.has(1))[0], "no room")
            assert await first == JobNotStarted("no room")
            second = asyncio.ensure_future(bus.tool_workers.call(JOB))
            anna.endpoint.report_unknown((await anna.has(2))[1], "leaving")
            assert await second == JobOutcomeUnknown("leaving")

    asyncio.run(scenario())


def test_a_job_without_an_answer_is_unknown_soon_after_its_time(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus, fake_worker(realm, answers=False) as anna:
            end = await bus.tool_workers.call(replace(JOB, left_ms=50))
            assert end == JobOutcomeUnknown("no reply within 50 ms")
            await anna.has(1)

    asyncio.run(scenario())


def test_a_cancellation_reaches_only_the_worker_of_the_job(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus, fake_worker(realm, answers=False) as anna:
            calls = [
                asyncio.ensure_future(bus.tool_workers.call(replace(JOB, call_id=f"call-{n}")))
                for n in range(3)
            ]
            jobs = {job.call_id: job for job in await anna.has(3)}
            bus.tool_workers.cancel("call-1")
            bus.tool_workers.cancel("unknown-call")
            await wait_until(lambda: anna.unwanted)
            assert anna.unwanted == [jobs["call-1"].id]
            for job in anna.jobs:
                await anna.endpoint.reply(job, job.call_id.encode())
            assert [await call for call in calls] == [
                JobAnswered(f"call-{n}".encode()) for n in range(3)
            ]

    asyncio.run(scenario())


def test_every_worker_sends_its_catalogue_unless_it_drains(realm: Realm) -> None:
    async def scenario() -> None:
        async with (
            realm.bus() as bus,
            fake_worker(realm, "anna", "price"),
            fake_worker(realm, "bert", "price", "cost") as bert,
            fake_worker(realm, "carl", surface="mill"),
        ):
            catalogues = [json.loads(one) for one in await bus.tool_workers.catalogues("shop", 10)]
            assert {
                one["worker"]: [tool["capability"]["name"] for tool in one["tools"]]
                for one in catalogues
            } == {"anna": ["price"], "bert": ["price", "cost"]}
            await bert.endpoint.drain()
            (left,) = await bus.tool_workers.catalogues("shop", 10)
            assert json.loads(left)["worker"] == "anna"
            assert await bus.tool_workers.catalogues("well", 0.1) == []

    asyncio.run(scenario())


def test_the_catalogue_is_waited_for(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus:
            asked = asyncio.ensure_future(bus.tool_workers.catalogues("shop", 20))
            await asyncio.sleep(0.05)
            async with fake_worker(realm):
                assert len(await asked) == 1

    asyncio.run(scenario())


def test_a_draining_worker_gets_nothing_new_and_finishes_what_it_has(realm: Realm) -> None:
    async def scenario() -> None:
        async with realm.bus() as bus, fake_worker(realm, "anna", answers=False) as anna:
            first = asyncio.ensure_future(bus.tool_workers.call(JOB))
            (job,) = await anna.has(1)
            async with fake_worker(realm, "bert") as bert:
                await anna.endpoint.drain()
                ends = await asyncio.gather(*(bus.tool_workers.call(JOB) for _ in range(20)))
                assert ends == [JobAnswered(b"bert")] * 20
                assert len(bert.jobs) == 20
            await anna.endpoint.reply(job, b"finished")
            assert await first == JobAnswered(b"finished")
            assert anna.jobs == [job]

    asyncio.run(scenario())


def test_nothing_is_lost_between_taking_and_draining(realm: Realm) -> None:
    """Jobs in transit while the worker drains are answered or rejected."""

    async def scenario() -> None:
        async with realm.bus() as bus:
            for _ in range(5):
                async with fake_worker(realm, "anna") as anna:
                    calls = [asyncio.ensure_future(bus.tool_workers.call(JOB)) for _ in range(50)]
                    await asyncio.sleep(0)
                    await anna.endpoint.drain()
                    ends = await asyncio.gather(*calls)
                    assert len(anna.jobs) == ends.count(JobAnswered(b"anna"))
                    assert not [end for end in ends if isinstance(end, JobOutcomeUnknown)]

    asyncio.run(scenario())


# --- a real server --------------------------------------------------------------------------------

LARGE = b'"' + b"x" * (3 << 20) + b'"'


def test_bodies_above_what_a_message_holds_travel_all_the_same(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.serving_bus() as bus, fake_worker(jetstream, answers=False) as anna:
            call = asyncio.ensure_future(bus.tool_workers.call(replace(JOB, body=LARGE)))
            (job,) = await anna.has(1)
            assert job.body == LARGE
            assert 0 < job.left_ms <= JOB.left_ms
            await anna.endpoint.reply(job, LARGE + b" ")
            end = await call
            assert isinstance(end, JobAnswered)
            assert end.body == LARGE + b" "
            assert await bus.blobs.get(end.blob) == end.body
            await bus.tool_workers.delete_answer(end.blob)
            assert not await bus.blobs.exists(end.blob)

    asyncio.run(scenario())


def test_an_answer_that_a_worker_stored_with_the_credential_is_deleted_and_refused(
    jetstream: JetStreamRealm,
) -> None:
    """As a worker in another language may store it, in a value or in a field that is not read. One
    without the credential is an answer like any other."""
    value, rest = "canary-7b1f5c2e9a4d8036", "x" * ((1 << 20) - 2)
    served = {"price": ServedTool(capability=Capability(name="price", description=""))}
    answers = ({"value": [rest, value]}, {"value": rest, "log": value[:16]}, {"value": rest})

    async def scenario() -> None:
        async with jetstream.serving_bus() as bus, fake_worker(jetstream, answers=False) as anna:
            host = RemoteToolHost(bus.tool_workers, "shop", served)
            for number, answer in enumerate(answers, 1):
                body, credential = json.dumps(answer).encode(), ToolCredential(value)
                ctx = ToolCallContext(
                    name="shop_price",
                    args=[],
                    kwargs={},
                    call_id=f"{number}",
                    credential=credential,
                )
                call = asyncio.ensure_future(host.call(ctx, 20_000))
                await anna.endpoint.reply((await anna.has(number))[-1], body)
                outcome = await call
                is_exposed = number < 3
                assert await bus.blobs.exists(digest_bytes(body)) is not is_exposed
                if is_exposed:
                    assert outcome.error.code == "CREDENTIAL_EXPOSED"
                else:
                    assert outcome.value == rest

    asyncio.run(scenario())


def test_what_is_too_large_for_anything_is_refused_before_and_an_error_after(
    jetstream: JetStreamRealm,
) -> None:
    enormous = b"x" * ((64 << 20) + 1)

    async def scenario() -> None:
        async with jetstream.serving_bus() as bus, fake_worker(jetstream, answers=False) as anna:
            with pytest.raises(Refused, match="PAYLOAD_TOO_LARGE"):
                await bus.tool_workers.call(replace(JOB, body=enormous))
            call = asyncio.ensure_future(bus.tool_workers.call(JOB))
            (job,) = await anna.has(1)
            await anna.endpoint.reply(job, enormous)
            end = await call
            assert isinstance(end, JobAnswered)
            assert json.loads(end.body)["error"]["code"] == "PAYLOAD_TOO_LARGE"

    asyncio.run(scenario())


def test_an_answer_that_cannot_be_sent_in_any_form_is_dropped(jetstream: JetStreamRealm) -> None:
    nowhere = replace(JOB, id="😀" * 1_100)

    async def scenario() -> None:
        async with jetstream.bus() as bus, fake_worker(jetstream) as anna:
            await anna.endpoint.reply(nowhere, b"1")
            assert await bus.tool_workers.call(JOB) == JobAnswered(b"anna")

    asyncio.run(scenario())


class PollingNode(NamedTuple):
    """A node's client with a short poll interval."""

    tool_workers: NatsToolWorkers
    connection: Connection
    rounds: list[object]
    """The polls so far."""


@asynccontextmanager
async def polling_node(realm: JetStreamRealm, pulse_s: float = 0.05) -> AsyncIterator[PollingNode]:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(realm.bus())
        connected = await stack.enter_async_context(connection(realm))
        blobs = JetStreamBlobs(Bucket(connected, SUBJECTS, SUBJECTS.blobs_bucket))
        crews = NatsToolWorkers(connected, SUBJECTS, blobs, pulse_s=pulse_s)
        stack.push_async_callback(crews.close)
        rounds: list[object] = []
        await connected.subscribe("rookery.default.crew.*.health", rounds.extend)
        yield PollingNode(crews, connected, rounds)


def test_a_worker_that_died_is_noticed_long_before_its_job_is_over(
    jetstream: JetStreamRealm,
) -> None:
    async def scenario() -> None:
        async with polling_node(jetstream) as node, fake_worker(jetstream, "bert", "cost"):
            async with fake_worker(jetstream, answers=False) as anna:
                call = asyncio.ensure_future(node.tool_workers.call(replace(JOB, left_ms=600_000)))
                await anna.has(1)
                await wait_until(lambda: len(node.rounds) > 5)
            async with asyncio.timeout(20):
                assert await call == JobOutcomeUnknown("worker anna lost the job")

    asyncio.run(scenario())


def test_a_job_reported_as_running_is_waited_for(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with (
            polling_node(jetstream, 0.01) as node,
            fake_worker(jetstream, answers=False) as anna,
        ):
            call = asyncio.ensure_future(node.tool_workers.call(JOB))
            (job,) = await anna.has(1)
            await wait_until(lambda: len(node.rounds) > 20)
            await anna.endpoint.reply(job, b"at last")
            assert await call == JobAnswered(b"at last")

    asyncio.run(scenario())


def test_a_job_outlives_a_restart_of_the_server(jetstream: JetStreamRealm) -> None:
    """The worker answers during an outage; the node receives the answer afterwards."""

    async def scenario() -> None:
        async with polling_node(jetstream) as node, fake_worker(jetstream, answers=False) as anna:
            call = asyncio.ensure_future(node.tool_workers.call(replace(JOB, left_ms=60_000)))
            (job,) = await anna.has(1)
            await asyncio.to_thread(jetstream.server.kill)
            await wait_until(lambda: not node.connection.connected)
            await anna.endpoint.reply(job, b"said into the void")
            assert await node.tool_workers.call(JOB) == JobNotStarted(
                "the node has no connection to the server"
            )
            await asyncio.to_thread(jetstream.server.start)
            assert await call == JobAnswered(b"said into the void")

    asyncio.run(scenario())


def test_a_cancellation_outlives_a_restart_of_the_server(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with polling_node(jetstream) as node, fake_worker(jetstream, answers=False) as anna:
            call = asyncio.ensure_future(node.tool_workers.call(replace(JOB, left_ms=60_000)))
            (job,) = await anna.has(1)
            await asyncio.to_thread(jetstream.server.kill)
            await wait_until(lambda: not node.connection.connected)
            node.tool_workers.cancel(JOB.call_id)
            await asyncio.to_thread(jetstream.server.start)
            await wait_until(lambda: anna.unwanted)
            assert set(anna.unwanted) == {job.id}
            anna.endpoint.report_unknown(job, "as you like")
            assert await call == JobOutcomeUnknown("as you like")

    asyncio.run(scenario())


def test_an_answer_that_was_lost_is_sent_again_but_not_for_ever(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with jetstream.bus(), fake_worker(jetstream), jetstream.stock(ANSWERS) as stock:
            heard: list[bytes] = []

            async def hear(message: Any) -> None:
                heard.append(message.data)

            async def answers_to(number: int) -> list[bytes]:
                heard.clear()
                named = json.dumps({"jobs": [f"{LOST}.{number}", f"{LOST}.never"]}).encode()
                await stock.request("rookery.default.crew.shop.health", named, timeout=60)
                await stock.flush()
                return heard

            await stock.subscribe(f"{LOST}.*", cb=hear)
            for number in range(1_002):
                await stock.publish("rookery.default.tool.shop.price", b"{}", f"{LOST}.{number}")
            await wait_until(lambda: len(heard) == 1_002)
            assert await answers_to(1_001) == [b"anna"]
            assert await answers_to(0) == []

    asyncio.run(scenario())


def test_malformed_messages_are_ignored(jetstream: JetStreamRealm) -> None:
    odd = {"Rookery-Left-Ms": "soon", "Rookery-Attempt": "-3", "Rookery-Blob": "no digest"}

    async def scenario() -> None:
        async with (
            jetstream.bus() as bus,
            fake_worker(jetstream) as anna,
            jetstream.stock(ANSWERS) as stock,
        ):
            await stock.publish("rookery.default.tool.shop.price", b"{}")
            await stock.publish("rookery.default.tool.shop.price", b"{}", "rookery.default.ev.x.y")
            elsewhere = "rookery.default.result.stock.abc.1"
            await stock.publish("rookery.default.tool.shop.price", b"{}", elsewhere)
            for what in ("health", "cancel", "catalogue", "other"):
                await stock.publish(f"rookery.default.crew.shop.{what}", b"[1", "somewhere")
                odd_call = b'{"calls": [{"call": 1, "attempt": "two"}]}'
                await stock.publish(f"rookery.default.crew.shop.{what}", odd_call, "somewhere")
            declined = await stock.request(
                "rookery.default.tool.shop.price", b"", timeout=60, headers=odd
            )
            assert declined.headers["Rookery-Outcome"] == "not-begun"
            assert anna.jobs == []
            assert await bus.tool_workers.call(JOB) == JobAnswered(b"anna")

    asyncio.run(scenario())
