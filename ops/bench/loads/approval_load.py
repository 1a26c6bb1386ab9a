"""Runs that wait for an approval: parked, listed and answered through the public client."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, suppress
from time import perf_counter
from typing import Any

from rookery.bus.client import Client
from rookery.bus.nats import Connection
from rookery.bus.subjects import Subjects
from rookery.ops.bench.harness.load import LoadResult, Task, command_id, timed
from rookery.schemas.approvals.lists import ListedApproval
from rookery.schemas.codec import fact_tag
from rookery.schemas.commands import HandleInput, ResolveCall, RevokeGrant
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.facts import turn
from rookery.schemas.run import RunRequest

__all__ = ["decide_approvals", "park_runs", "touch_sessions", "wake_runs"]

_WAITING = RunRequest(code="weighed(2)", timeout_ms=60_000)
"""Calls a tool of ``run_load``."""
_PARKED, _ENDED = fact_tag(turn.Parked), fact_tag(turn.Completed)
_PATIENCE_S = 30.0


async def park_runs(connection: Connection, task: Task) -> LoadResult:
    """Start a run in each session and wait until all are parked."""
    async with (
        Client(task.client_url) as client,
        _fact_waiter(client, connection, _PARKED) as next_fact,
    ):

        async def park(number: int) -> None:
            session = _session(number, task)
            await client.submit(session, _WAITING, message_id=command_id(task.cell, number))
            await next_fact(session)

        return await _each(park, task)


async def touch_sessions(connection: Connection, task: Task) -> LoadResult:
    """Load every entity of the sessions, by a query to each of its actors."""
    del connection
    questions = (
        ("session", None),
        ("turns", HandleInput(input="nothing")),
        ("resolve", ResolveCall(run_id="none", operation_id="none", retry=True)),
        ("grants", RevokeGrant(grant_id="none")),
    )
    async with Client(task.client_url) as client:

        async def touch(number: int) -> None:
            for verb, body in questions:
                with suppress(Refused):
                    await client.ask(verb, _session(number, task), body)

        return await _each(touch, task)


async def wake_runs(connection: Connection, task: Task) -> LoadResult:
    """Time from an answer to the end of the run, which has then made its call."""
    async with (
        Client(task.client_url) as client,
        _fact_waiter(client, connection, _ENDED) as next_fact,
    ):
        waiting = await _waiting(client, task)

        async def wake(number: int) -> None:
            session = _session(number, task)
            await client.decide(waiting[session], "approved", actor="bench")
            ended = await next_fact(session)
            if ended["result"]["result"] != 2:
                raise Failed("NODE_FAILED", f"the run in {session} ended as {ended}")

        return await _each(wake, task)


async def decide_approvals(connection: Connection, task: Task) -> LoadResult:
    """Time from an answer to its durable receipt."""
    del connection
    async with Client(task.client_url) as client:
        waiting = await _waiting(client, task)

        async def decide(number: int) -> None:
            await client.decide(waiting[_session(number, task)], "approved", actor="bench")

        return await _each(decide, task)


async def _each(work: Callable[[int], Awaitable[None]], task: Task) -> LoadResult:
    """Do ``work`` for every number, ``task.window`` at a time."""
    taken_s: list[float] = []

    async def work_off(numbers: Iterator[int]) -> None:
        for number in numbers:
            begun_s = perf_counter()
            async with asyncio.timeout(_PATIENCE_S):
                await work(number)
            taken_s.append(perf_counter() - begun_s)

    numbers = iter(range(task.count))
    start_s = perf_counter()
    await asyncio.gather(*(work_off(numbers) for _ in range(task.window)))
    return timed(taken_s, perf_counter() - start_s)


async def _waiting(client: Client, task: Task) -> dict[str, ListedApproval]:
    """The waiting approvals by session."""
    found = [await client.approvals(_session(number, task)) for number in range(task.count)]
    return {approval.session_id: approval for approval, *_ in found}


@asynccontextmanager
async def _fact_waiter(
    client: Client, connection: Connection, kind: str
) -> AsyncIterator[Callable[[str], Awaitable[dict[str, Any]]]]:
    """A function that waits for the first new fact of this kind in a session."""
    here: defaultdict[str, asyncio.Future[dict[str, Any]]] = defaultdict(asyncio.Future)

    async def listen(after: int) -> None:
        async with aclosing(client.events("turn", after=after)) as facts:
            async for fact in facts:
                expected = here[fact["session"]]
                if fact["type"] == kind and not expected.done():
                    expected.set_result(fact)

    async def next_fact(session: str) -> dict[str, Any]:
        return await here[session]

    journal = await connection.api(f"STREAM.INFO.{Subjects('default').journal_stream}")
    listening = asyncio.create_task(listen(journal["state"]["last_seq"]))
    try:
        yield next_fact
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)


def _session(number: int, task: Task) -> str:
    return f"w{task.first + number}"
