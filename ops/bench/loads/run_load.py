"""Runs through the public client, and the tools of their programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from time import perf_counter

from msgspec.structs import replace

from rookery.actors import tool
from rookery.actors.tools import ToolRegistry
from rookery.bus.client import Client
from rookery.bus.nats import Connection
from rookery.bus.subjects import Subjects
from rookery.ops.bench.harness.load import LoadResult, Task, command_id, timed
from rookery.ops.bench.harness.result_rows import percentile
from rookery.schemas.calls import ApprovalMode
from rookery.schemas.codec import fact_tag
from rookery.schemas.commands import HandleInput
from rookery.schemas.errors import Failed
from rookery.schemas.facts.session import RunPrepared
from rookery.schemas.run import RunRequest

__all__ = [
    "CALLING",
    "PLAIN",
    "calls",
    "counted_programs",
    "programs",
    "registry",
    "runs",
    "same",
    "timed_run",
]

# --- run load -------------------------------------------------------------------------------------

# Runs through the public client: programs up to their results, and requests up to their receipts.
#
# A program with an unexpected result ends the measurement. For receipts the node executes no runs:
# a follower of the feed commits each run as soon as it is prepared.


PLAIN = RunRequest(code="1 + 1")
CALLING = RunRequest(code="same(2)")
"""Calls a tool of this module."""
_QUIET_S = 0.5
_MOMENT_S = 0.002


async def programs(connection: Connection, task: Task) -> LoadResult:
    """Run ``1 + 1`` in ``task.window`` sessions at a time."""
    del connection
    taken_s: list[float] = []

    async def work_off(numbers: Iterator[int]) -> None:
        taken_s.extend([await timed_run(client, task, number, PLAIN) for number in numbers])

    async with Client(task.client_url) as client:
        numbers = iter(range(task.count))
        start_s = perf_counter()
        await asyncio.gather(*(work_off(numbers) for _ in range(task.window)))
        return timed(taken_s, perf_counter() - start_s)


async def counted_programs(connection: Connection, task: Task) -> LoadResult:
    """As ``programs``, with the number of messages left in the journal."""
    before = await _settled(connection)
    outcome = await programs(connection, task)
    return replace(outcome, left=await _settled(connection) - before)


async def calls(connection: Connection, task: Task) -> LoadResult:
    """The extra time and the extra messages of a program with one call, compared with the program
    before it, which makes none."""
    longer_s: list[float] = []
    left = 0
    async with Client(task.client_url) as client:
        start_s = perf_counter()
        for number in range(0, 2 * task.count, 2):
            plain_s = await timed_run(client, task, number, PLAIN)
            longer_s.append(await timed_run(client, task, number + 1, CALLING) - plain_s)
        seconds = perf_counter() - start_s
        for number, (sign, request) in enumerate(((1, CALLING), (-1, PLAIN)), 2 * task.count):
            before = await _settled(connection)
            await timed_run(client, task, number, request)
            left += sign * (await _settled(connection) - before)
    p50_s, p99_s = percentile(longer_s, 0.5), percentile(longer_s, 0.99)
    return LoadResult(task.count, seconds, 1e6 * p50_s, 1e6 * p99_s, left)


async def timed_run(client: Client, task: Task, number: int, request: RunRequest) -> float:
    """How long a run takes whose result is 2."""
    session = f"p{task.first + number % task.entities}"
    identity = command_id(task.cell, number)
    sent_s = perf_counter()
    answer = await client.ask("run", session, request, message_id=identity)
    taken_s = perf_counter() - sent_s
    if answer["result"] != 2:
        raise Failed("NODE_FAILED", f"run {identity} ended as {answer}")
    return taken_s


async def _settled(connection: Connection) -> int:
    """The number of messages in the journal once it stops growing; a run's last message follows its
    result."""
    last, seen = -1, await _length(connection)
    while seen != last:
        await asyncio.sleep(_QUIET_S)
        last, seen = seen, await _length(connection)
    return seen


async def _length(connection: Connection) -> int:
    info = await connection.api(f"STREAM.INFO.{Subjects('default').journal_stream}")
    length: int = info["state"]["last_seq"]
    return length


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


# --- run tools ------------------------------------------------------------------------------------

# The tools of the benches' programs. They do nothing, so that only the call itself is measured.


@tool(side_effect="write", idempotent=True)
def same(value: int) -> int:
    """The value; its intent is on record before the call."""
    return value


@tool(side_effect="write", idempotent=True)
async def same_awaited(value: int) -> int:
    """The value, awaited; its intent is on record before the call."""
    return value


@tool(side_effect="write", idempotent=True)
async def same_later(value: int) -> int:
    """The value a moment later, as one that another process answers."""
    await asyncio.sleep(_MOMENT_S)
    return value


@tool(side_effect="write", idempotent=True, quick=True)
def same_quick(value: int) -> int:
    """The value, on the node's own loop; its intent is on record before the call."""
    return value


@tool(side_effect="read")
def read_value(value: int) -> int:
    """The value; recorded with its outcome."""
    return value


@tool(approval_policy=ApprovalMode.MANUAL)
def weighed(value: int) -> int:
    """The value, after an approval."""
    return value


registry = ToolRegistry.of(same, same_awaited, same_later, same_quick, read_value, weighed)
