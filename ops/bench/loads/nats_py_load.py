"""The baselines with nats-py, unmodified, as its users write them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

import nats

from rookery.bus.nats import Connection
from rookery.ops.bench.harness.load_window import LoadResult, timed
from rookery.ops.bench.harness.task import Task
from rookery.ops.bench.loads.jetstream_load import BODY, make_stream, subject

__all__ = ["js_publish", "publish_thin"]


async def js_publish(connection: Connection, task: Task) -> LoadResult:
    """Call ``js.publish`` one message after the other."""
    await make_stream(connection)
    taken_s: list[float] = []
    async with _client(task) as client:
        stream = client.jetstream()
        start_s = perf_counter()
        for number in range(task.count):
            sent_s = perf_counter()
            await stream.publish(subject(number, task), BODY)
            taken_s.append(perf_counter() - sent_s)
        return timed(taken_s, perf_counter() - start_s)


async def publish_thin(connection: Connection, task: Task) -> LoadResult:
    """The least a publisher can do: ``publish`` with a reply inbox, and count acks."""
    await make_stream(connection)
    free = asyncio.Semaphore(task.window)

    async def on_ack(ack: Any) -> None:
        assert b'"error"' not in ack.data
        free.release()

    async with _client(task) as client:
        inbox = client.new_inbox()
        await client.subscribe(inbox, cb=on_ack)
        start_s = perf_counter()
        for number in range(task.count):
            await free.acquire()
            await client.publish(subject(number, task), BODY, reply=inbox)
        for _ in range(task.window):
            await free.acquire()
        return LoadResult(task.count, perf_counter() - start_s)


@asynccontextmanager
async def _client(task: Task) -> AsyncIterator[Any]:
    client = await nats.connect(task.admin_url)
    try:
        yield client
    finally:
        await client.close()
