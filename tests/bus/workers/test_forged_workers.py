"""Forged workers: a credential that is not that of a surface's worker gets none of its jobs, and
answers none, although it knows the reply subject of each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count

from rookery.bus.nats.connection import Connection, Message, Outgoing
from rookery.bus.roles import ROLES_FOR_ONE, Role
from rookery.bus.workers.protocol import QUEUE
from rookery.schemas.worker_protocol import Job, JobAnswered
from tests.bus.deadlines import wait_until
from tests.bus.realms import JetStreamRealm
from tests.bus.workers.test_tool_workers import JOB, SUBJECTS, FakeWorker, fake_worker

JOBS = SUBJECTS.job(JOB.surface, JOB.tool)
CREW = SUBJECTS.worker_broadcast(JOB.surface, "health")
TOOLS = f"{SUBJECTS.root}.tool.>"
RESULTS = SUBJECTS.worker_results("*", "*")
FORGED, HONEST = b"forged", b"honest"
OTHERS = [role for role in Role if role is not Role.NODE]
"""A worker among them is that of another surface, a hook's process that of another hook."""


class Forger:
    """A connection that acts as a worker of the surface."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._numbers = connection, count(1)
        self.heard: list[Message] = []
        self.denied: set[str] = set()
        connection.on_denied.append(self.denied.add)

    async def join(self) -> None:
        """Join the queue group of the surface's workers, and listen to what others are sent."""
        client = self._connection.client
        await client.subscribe(JOBS, QUEUE, cb=self._on_message)
        for subject in (CREW, TOOLS, RESULTS):
            await client.subscribe(subject, cb=self._on_message)

    async def answer(self, subject: str) -> None:
        """Answer a job; return when the server has judged that."""
        self._connection.send([Outgoing(subject, FORGED)])
        await self._connection.client.flush()

    async def _on_message(self, message: Message) -> None:
        self.heard.append(message)


@asynccontextmanager
async def forger(realm: JetStreamRealm, role: Role, surface: str = "") -> AsyncIterator[Forger]:
    surface = surface or ("other" if role in ROLES_FOR_ONE else "")
    connection = Connection(realm.server.url_for(role, surface=surface))
    await connection.open()
    try:
        yield Forger(connection)
    finally:
        await connection.close()


async def answered(
    realm: JetStreamRealm, anna: FakeWorker, forged: Sequence[Forger], subject: str = "{id}"
) -> bytes:
    """What the node takes for the answer of a job, which forgers answer before its worker."""
    async with realm.bus() as bus:
        before = len(anna.jobs)
        call = asyncio.create_task(bus.tool_workers.call(JOB))
        job: Job = (await anna.has(before + 1))[-1]
        for one in forged:
            await one.answer(subject.format(id=job.id))
        await anna.endpoint.reply(job, HONEST)
        ended = await call
    assert isinstance(ended, JobAnswered)
    return ended.body


def test_no_role_acts_as_a_worker_of_a_surface(jetstream: JetStreamRealm) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as opened:
            forged = [await opened.enter_async_context(forger(jetstream, one)) for one in OTHERS]
            for one in forged:
                await one.join()
            anna = await opened.enter_async_context(fake_worker(jetstream, answers=False))
            assert {await answered(jetstream, anna, forged) for _ in range(3)} == {HONEST}
            for role, one in zip(OTHERS, forged, strict=True):
                asked = {JOBS, CREW, TOOLS, RESULTS, *(job.id for job in anna.jobs)}
                await wait_until(lambda one=one, asked=asked: len(one.denied) >= len(asked))
                assert one.denied == asked, role
                assert one.heard == [], role

    asyncio.run(scenario())


def test_a_worker_of_the_surface_answers_no_job_that_it_was_not_given(
    jetstream: JetStreamRealm,
) -> None:
    """The server lets it publish there: the node's secret in the reply subject keeps it out."""

    async def scenario() -> None:
        async with (
            fake_worker(jetstream, answers=False) as anna,
            forger(jetstream, Role.WORKER, JOB.surface) as colleague,
        ):
            guess = SUBJECTS.worker_results(JOB.surface, "0" * 32).replace("*", "1")
            assert await answered(jetstream, anna, [colleague], guess) == HONEST
            assert not colleague.denied
            assert await answered(jetstream, anna, [colleague]) == FORGED, "with the secret it can"

    asyncio.run(scenario())
