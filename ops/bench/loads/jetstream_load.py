"""The baselines of JetStream itself on this machine, by two clients.

Messages of 150 bytes on a plain stream, with acks, one at a time and pipelined, and on to a push
subscriber: by Rookery's connection, the fastest publisher in Python we know, and by nats-py,
unmodified, as its users write it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter
from typing import Any

import nats

from rookery.bus.nats import Connection, Outgoing
from rookery.ops.bench.harness.load import LoadResult, LoadWindow, Task, timed

__all__ = [
    "BODY",
    "js_publish",
    "make_stream",
    "publish_pipelined",
    "publish_thin",
    "push",
    "subject",
]

BODY = b"x" * 150
_STREAM = "RAW"
_PATIENCE_S = 5.0


async def publish_pipelined(connection: Connection, task: Task) -> LoadResult:
    """Publish with acks, ``task.window`` in flight."""
    await make_stream(connection)
    window = LoadWindow(connection, task)
    messages = [
        Outgoing(subject(number, task), BODY, window.reply(number)) for number in range(task.count)
    ]
    return await window.run(messages)


async def push(connection: Connection, task: Task) -> LoadResult:
    """Time from a publish to the push subscriber, one message at a time."""
    await make_stream(connection)
    subscriber = Connection(task.admin_url)
    await subscriber.open()
    try:
        inbox, here = subscriber.client.new_inbox(), asyncio.Event()
        await subscriber.subscribe(inbox, lambda _: here.set())
        config = {"deliver_subject": inbox, "deliver_policy": "new", "ack_policy": "none"}
        query = {"stream_name": _STREAM, "config": config}
        await subscriber.api(f"CONSUMER.CREATE.{_STREAM}", query)
        return await _until_there(connection, task, here)
    finally:
        await subscriber.close()


async def _until_there(connection: Connection, task: Task, here: asyncio.Event) -> LoadResult:
    acks = connection.client.new_inbox()
    taken_s: list[float] = []
    start_s = perf_counter()
    for number in range(task.count):
        here.clear()
        sent_s = perf_counter()
        connection.send([Outgoing(subject(number, task), BODY, acks)])
        await asyncio.wait_for(here.wait(), _PATIENCE_S)
        taken_s.append(perf_counter() - sent_s)
    return timed(taken_s, perf_counter() - start_s)


async def make_stream(connection: Connection) -> None:
    """Create the stream; creating it twice changes nothing."""
    config = {"name": _STREAM, "subjects": ["raw.>"], "storage": "file"}
    await connection.api(f"STREAM.CREATE.{_STREAM}", config)


def subject(number: int, task: Task) -> str:
    """The subject of a message; there is one per entity."""
    return f"raw.e{number % task.entities}"


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
