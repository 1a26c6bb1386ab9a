"""Runs, from request to receipt, through the public client.

The node executes no runs here: a follower of the feed commits each run as soon as it is prepared.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from time import perf_counter

from rookery.bus.client import Client
from rookery.bus.nats import Connection
from rookery.bus.subjects import Subjects
from rookery.ops.bench.harness.load_window import LoadResult, timed
from rookery.ops.bench.harness.task import Task, command_id
from rookery.schemas.codec import fact_tag
from rookery.schemas.commands import HandleInput
from rookery.schemas.errors import Failed
from rookery.schemas.facts.session import RunPrepared
from rookery.schemas.run import RunRequest

__all__ = ["runs"]

_REQUEST = RunRequest(code="1+1")


async def runs(connection: Connection, task: Task) -> LoadResult:
    """Request runs in ``task.window`` sessions at a time, one run per session."""
    taken_s: list[float] = []
    ended: set[str] = set()

    async def work_off(numbers: Iterator[int]) -> None:
        for number in numbers:
            session, identity = f"s{number % task.entities}", command_id(task.cell, number)
            sent_s = perf_counter()
            receipt = await client.ask("run", session, _REQUEST, message_id=identity)
            taken_s.append(perf_counter() - sent_s)
            if receipt["state"] != "committed" or receipt["run_id"] in ended:
                raise Failed("NODE_FAILED", f"run {identity} ended as {receipt}")
            ended.add(receipt["run_id"])

    journal = await connection.api(f"STREAM.INFO.{Subjects('default').journal_stream}")
    after = journal["state"]["last_seq"]
    async with Client(task.client_url) as client, _committing(client, after):
        numbers = iter(range(task.count))
        start_s = perf_counter()
        await asyncio.gather(*(work_off(numbers) for _ in range(task.window)))
        return timed(taken_s, perf_counter() - start_s)


@asynccontextmanager
async def _committing(client: Client, after: int) -> AsyncIterator[None]:
    """Commit every run as soon as it is prepared."""
    commits: set[asyncio.Task[object]] = set()

    async def commit_all() -> None:
        async for fact in client.events("session", after=after):
            if fact["type"] == fact_tag(RunPrepared):
                params = {"input_id": fact["input_id"], "run_id": fact["run"]}
                body = HandleInput(input="commit", params=params)
                commit = asyncio.create_task(client.ask("admission", fact["session"], body))
                commits.add(commit)
                commit.add_done_callback(commits.discard)

    following = asyncio.create_task(commit_all())
    try:
        yield
    finally:
        following.cancel()
        await asyncio.gather(following, *commits, return_exceptions=True)
