"""The baselines of JetStream itself on this machine.

Messages of 150 bytes on a plain stream, with acks, one at a time and pipelined, and on to a push
subscriber. They use Rookery's connection, the fastest publisher in Python we know.
"""

from __future__ import annotations

import asyncio
from time import perf_counter

from rookery.bus.nats import Connection, Outgoing
from rookery.ops.bench.harness.load_window import LoadResult, LoadWindow, timed
from rookery.ops.bench.harness.task import Task

__all__ = ["BODY", "make_stream", "publish_pipelined", "push", "subject"]

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
