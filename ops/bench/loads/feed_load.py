"""Facts to a follower: one process, a connection to append on and another one to follow on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import perf_counter

from rookery.actors.kernel.committer import Commit
from rookery.actors.kernel.entity import Entity
from rookery.bus import ports
from rookery.bus.jetstream_bus import JetStreamBus
from rookery.bus.nats.connection import Connection
from rookery.ops.bench.harness.bench_decider import FAMILY, TurnsConcern
from rookery.ops.bench.harness.load_window import Outcome, timed
from rookery.ops.bench.harness.task import Task, command_id
from rookery.ops.bench.loads.entity_histories import commit_of, next_turn, settled
from rookery.schemas.envelope import EntityId

__all__ = ["feed"]

_WARM_UP = 10
_PATIENCE_S = 5.0


async def feed(connection: Connection, task: Task) -> Outcome:
    """One fact at a time: the next is appended when the follower has this one."""
    del connection
    concern, taken_s = TurnsConcern(), list[float]()
    entities = [Entity(EntityId(FAMILY, f"e{n}"), concern) for n in range(task.entities)]
    async with _joined(task) as ours, _joined(task) as theirs, _followed(theirs.feed) as arrivals:
        await ours.journal.take(frozenset(range(ports.PARTITIONS)))
        for number in range(_WARM_UP + task.count):
            entity = entities[number % task.entities]
            commit = commit_of(entity, concern, next_turn(entity, command_id("f", number)))
            taken_s.append(await _until_there(ours.journal, commit, arrivals))
    return timed(taken_s[_WARM_UP:], sum(taken_s[_WARM_UP:]))


async def _until_there(
    journal: ports.Journal, commit: Commit, arrivals: asyncio.Queue[float]
) -> float:
    outcomes: asyncio.Queue[list[ports.Outcome]] = asyncio.Queue()
    start_s = perf_counter()
    journal.append([commit], outcomes.put_nowait)
    there_s = await asyncio.wait_for(arrivals.get(), _PATIENCE_S)
    (outcome,) = await outcomes.get()
    assert isinstance(outcome, ports.Settled)
    settled(commit, outcome.sequence)
    return there_s - start_s


@asynccontextmanager
async def _joined(task: Task) -> AsyncIterator[JetStreamBus]:
    bus = JetStreamBus(task.url, sync=task.sync)
    await bus.start()
    try:
        yield bus
    finally:
        await bus.stop()


@asynccontextmanager
async def _followed(feed: ports.Feed) -> AsyncIterator[asyncio.Queue[float]]:
    """When each message arrives at a follower."""
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
