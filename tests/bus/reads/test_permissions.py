"""Clients and workers without permission for JetStream read and answer through nodes."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

from rookery.bus.clock import wait_until
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.nats import Connection
from rookery.bus.ports import Filter
from rookery.bus.reads import NodeBlobs, NodeFeed, NodeJournal
from rookery.bus.server.server import find_server
from rookery.bus.server.store import Store
from rookery.bus.subjects import Subjects
from rookery.bus.workers import NatsWorkerEndpoint
from rookery.schemas.worker_protocol import JobAnswered
from tests.bus.journals import Writer, pages, session
from tests.bus.workers.test_tool_workers import JOB, FakeWorker

SUBJECTS = Subjects("default")
LARGE = b"x" * (3 << 20)

CONFIG = """
listen: "127.0.0.1:-1"
ports_file_dir: "{folder}"
log_file: "{folder}/log"
jetstream {{ store_dir: "{folder}/js" }}
authorization {{ users: [
  {{ user: node, password: p }}
  {{ user: client, password: p, permissions: {{
    publish: ["rookery.default.read.journal", "rookery.default.read.blobs.*.*"]
    subscribe: ["_INBOX.>", "rookery.default.ev.>"] }} }}
  {{ user: worker, password: p, permissions: {{
    publish: ["rookery.default.result.shop.>", "rookery.default.read.blobs.*.*",
              "rookery.default.upload.>"]
    subscribe: ["_INBOX.>", "rookery.default.tool.shop.*", "rookery.default.crew.shop.*"] }} }}
] }}
"""


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    config = tmp_path / "server.conf"
    config.write_text(CONFIG.format(folder=tmp_path))
    server = subprocess.Popen([find_server(), "-c", str(config)])
    try:
        running = wait_until(Store(tmp_path).running_server, 90)
        assert running is not None
        yield urlsplit(running.address).netloc
    finally:
        server.terminate()
        server.wait()


@asynccontextmanager
async def serving(address: str) -> AsyncIterator[JetStreamBus]:
    bus = JetStreamBus(f"nats://node:p@{address}")
    await bus.start()
    await bus.request_endpoint.open(lambda _: None)
    try:
        yield bus
    finally:
        await bus.stop()


@asynccontextmanager
async def connected(address: str, user: str) -> AsyncIterator[Connection]:
    connection = Connection(f"nats://{user}:p@{address}")
    await connection.open()
    try:
        yield connection
    finally:
        await connection.close()


def test_a_client_reads_facts_and_results_without_permission_for_jetstream(address: str) -> None:
    async def scenario() -> None:
        async with serving(address) as bus, connected(address, "client") as client:
            await Writer().write(bus.journal, session("a"), session("b"))
            journal, feed = NodeJournal(client, SUBJECTS), NodeFeed(client, SUBJECTS)
            assert await journal.end() == 2
            assert await journal.last(session("a")) == await bus.journal.last(session("a"))
            assert [one.sequence for one in await pages(feed.follow(Filter()), 2)] == [1, 2]
            digest = await bus.blobs.put(LARGE)
            assert await NodeBlobs(client, SUBJECTS).get(digest) == LARGE

    asyncio.run(scenario())


def test_a_worker_answers_and_stores_large_results_without_permission_for_jetstream(
    address: str,
) -> None:
    async def scenario() -> None:
        async with serving(address) as bus, connected(address, "worker") as worker:
            blobs = NodeBlobs(worker, SUBJECTS)
            endpoint = NatsWorkerEndpoint(worker, SUBJECTS, blobs, "shop")
            anna = await FakeWorker(endpoint, "anna", answers=False).open("price")
            large = replace(JOB, body=LARGE)
            call = asyncio.create_task(bus.tool_workers.call(large))
            (job,) = await anna.has(1)
            assert job.body == LARGE
            await endpoint.reply(job, LARGE[1:])
            end = await call
            assert isinstance(end, JobAnswered)
            assert end.body == LARGE[1:]
            assert len(await bus.tool_workers.catalogues("shop", 5.0)) == 1

    asyncio.run(scenario())
