"""Commands as clients send them, and facts as a follower gets them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

from rookery.actors.kernel.entities import Commit, Entity
from rookery.bus import ports
from rookery.bus.commands import command_headers
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.nats import Connection, Message, Outgoing
from rookery.bus.subjects import Subjects
from rookery.ops.bench.harness.bench_nodes import COMMAND, FAMILY, VERB, BenchDecider
from rookery.ops.bench.harness.load import LoadResult, LoadWindow, Task, command_id, is_error, timed
from rookery.ops.bench.loads.rebuild_load import apply_commit, decide_commit, next_turn
from rookery.schemas.envelope import EntityId

__all__ = [
    "feed",
    "inbox",
    "requests",
]

# --- command load ---------------------------------------------------------------------------------

# Commands as clients send them, to the request endpoint and to the inbox.


_SUBJECTS = Subjects("default")


async def requests(connection: Connection, task: Task) -> LoadResult:
    """Send by request-reply, over the entities in turn."""
    window = LoadWindow(connection, task)
    messages = [
        Outgoing(
            _SUBJECTS.request(VERB, _key(number, task)),
            COMMAND,
            window.reply(number),
            command_headers(command_id(task.cell, number)),
        )
        for number in range(task.count)
    ]
    return await window.run(messages)


async def inbox(connection: Connection, task: Task) -> LoadResult:
    """Send to the durable inbox: acked by JetStream, answered on ``Rookery-Reply``."""
    window, acks = LoadWindow(connection, task), connection.client.new_inbox()

    def on_acks(messages: list[Message]) -> None:
        if any(map(is_error, messages)):
            window.fail("the inbox refuses commands")

    await connection.subscribe(acks, on_acks)
    messages = [
        Outgoing(
            _SUBJECTS.command(VERB, _key(number, task)),
            COMMAND,
            acks,
            command_headers(command_id(task.cell, number), reply_to=window.reply(number)),
        )
        for number in range(task.count)
    ]
    return await window.run(messages)


def _key(number: int, task: Task) -> str:
    return f"e{(task.first + number) % task.entities}"


# --- feed load ------------------------------------------------------------------------------------

# Facts to a follower: one process with a connection that appends and another that follows.


_WARM_UP = 10
_PATIENCE_S = 5.0


async def feed(connection: Connection, task: Task) -> LoadResult:
    """Append one fact at a time; the next follows when the follower has received it."""
    del connection
    concern, taken_s = BenchDecider(), list[float]()
    entities = [Entity(EntityId(FAMILY, f"e{n}"), concern) for n in range(task.entities)]
    async with _join(task) as ours, _join(task) as theirs, _follow(theirs.feed) as arrivals:
        await ours.journal.begin_terms(frozenset(range(ports.PARTITIONS)))
        for number in range(_WARM_UP + task.count):
            entity = entities[number % task.entities]
            commit = decide_commit(entity, concern, next_turn(entity, command_id("f", number)))
            taken_s.append(await _until_there(ours.journal, commit, arrivals))
    return timed(taken_s[_WARM_UP:], sum(taken_s[_WARM_UP:]))


async def _until_there(
    journal: ports.Journal, commit: Commit, arrivals: asyncio.Queue[float]
) -> float:
    outcomes: asyncio.Queue[list[ports.AppendOutcome]] = asyncio.Queue()
    start_s = perf_counter()
    journal.append([commit], outcomes.put_nowait)
    there_s = await asyncio.wait_for(arrivals.get(), _PATIENCE_S)
    (outcome,) = await outcomes.get()
    assert isinstance(outcome, ports.Appended)
    apply_commit(commit, outcome.sequence)
    return there_s - start_s


@asynccontextmanager
async def _join(task: Task) -> AsyncIterator[JetStreamBus]:
    bus = JetStreamBus(task.url, sync=task.sync)
    await bus.start()
    try:
        yield bus
    finally:
        await bus.stop()


@asynccontextmanager
async def _follow(feed: ports.Feed) -> AsyncIterator[asyncio.Queue[float]]:
    """The arrival times of messages at a follower."""
    arrivals: asyncio.Queue[float] = asyncio.Queue()

    async def follow() -> None:
        async for page in feed.follow(ports.Filter()):
            for _ in page:
                arrivals.put_nowait(perf_counter())

    following = asyncio.create_task(follow())
    try:
        yield arrivals
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
