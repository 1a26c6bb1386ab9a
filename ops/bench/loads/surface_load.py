"""Runs with MCP servers as surfaces of the realm, which the load adds and removes, and calls by
``rookery mcp``."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from rookery.bus.client import Client
from rookery.bus.nats import Connection
from rookery.ops.bench.harness.load import LoadResult, Task, timed
from rookery.ops.bench.harness.process_usage import usage_here, usage_of
from rookery.ops.bench.harness.result_rows import percentile
from rookery.ops.bench.loads.mcp_load import call_same, role_command, started, url_of_many
from rookery.ops.bench.loads.run_load import CALLING, PLAIN, timed_run
from rookery.schemas.calls import ApprovalMode
from rookery.schemas.errors import Failed
from rookery.schemas.facts.surface import REALM_KEY
from rookery.schemas.run import RunRequest, SideEffect
from rookery.schemas.surfaces import (
    ChangeCatalogue,
    SurfaceKind,
    SurfacePolicy,
    SurfaceSource,
    ToolPolicy,
)

if TYPE_CHECKING:
    from mcp import Client as McpClient

__all__ = ["many_surfaces", "mcp_calls"]

_SURFACE = "bench"
_CALLING = RunRequest(code=f"{_SURFACE}_same(value=2)['result']")
_REPEATED = 10
_IN_LOOP = "for n in range({}):\n    x = await {}(value=2)\n2"
_BY_SERVER = RunRequest(code=_IN_LOOP.format(_REPEATED, f"{_SURFACE}_same"))
_BY_NODE = RunRequest(code=_IN_LOOP.format(_REPEATED, "same_awaited"))
_CHANGE_S = 45.0
_WARM = 3
"""Rounds before the measured ones: the first opens the sessions."""
_ROUNDS = 4
_ROUNDS_OF = 30
"""Calls for each measurement of processor time."""
_POLICY = SurfacePolicy(
    default=ToolPolicy(approval=ApprovalMode.NONE, side_effect=SideEffect.WRITE, idempotent=True)
)


async def mcp_calls(connection: Connection, task: Task) -> LoadResult:
    """Calls of one tool by stdio, in turn: ``alone``, by a client of the SDK; ``called``, the extra
    time of a program with one call; ``served``, through ``rookery mcp``; ``direct``, the run which
    that becomes, by the client; and the processor time of a call: ``alone_cpu`` of the client,
    ``called_cpu`` of the node, ``own_cpu`` of the node for an awaited function of its own."""
    del connection
    taken = defaultdict[str, list[float]](list)
    command = role_command("mcp_same", task)
    own = (sys.executable, "-m", "rookery.ops.cli", "mcp", "--url", task.client_url)
    source = SurfaceSource(kind=SurfaceKind.MCP_STDIO, command=command, policy=_POLICY)
    async with (
        started(*command) as alone,
        started(*own) as served,
        Client(task.client_url) as client,
        _added(client, {_SURFACE: source}),
    ):
        start_s = perf_counter()
        for number in range(0, 3 * (task.count + _WARM), 3):
            if perf_counter() - start_s > task.seconds_max / 2:
                break
            taken["alone"].append(await _time(lambda: call_same(alone)))
            plain_s = await timed_run(client, task, number, PLAIN)
            called_s = await timed_run(client, task, number + 1, _CALLING)
            taken["called"].append(called_s - plain_s)
            taken["served"].append(await _time(lambda: call_same(served)))
            taken["direct"].append(await timed_run(client, task, number + 2, CALLING))
        outcome = timed(taken["alone"][_WARM:], perf_counter() - start_s)
        first = 3 * (task.count + _WARM)
        for number in range(first, first + 2 * (_WARM + 1 + task.count // _ROUNDS_OF), 2):
            same = number * task.entities, (number + 1) * task.entities
            taken["called_cpu"].append(await _node_time(client, task, same[0], _BY_SERVER))
            taken["own_cpu"].append(await _node_time(client, task, same[1], _BY_NODE))
            taken["alone_cpu"].append(await _own_time(alone))
    figures = {name: 1e6 * percentile(found[_WARM:], 0.5) for name, found in taken.items()}
    return replace(outcome, figures=figures)


async def _node_time(client: Client, task: Task, number: int, request: RunRequest) -> float:
    """The processor time that the node uses for a call of this program."""
    before_s = usage_of(task.node_pid).cpu_s
    await timed_run(client, task, number, request)
    return (usage_of(task.node_pid).cpu_s - before_s) / _REPEATED


async def _own_time(alone: McpClient) -> float:
    """The processor time that the SDK uses here for a call."""
    before_s = usage_here().cpu_s
    for _ in range(_REPEATED):
        await call_same(alone)
    return (usage_here().cpu_s - before_s) / _REPEATED


async def _time(work: Callable[[], Awaitable[object]]) -> float:
    sent_s = perf_counter()
    result = await work()
    taken_s = perf_counter() - sent_s
    if result != 2:
        raise Failed("NODE_FAILED", f"a call ended as {result}")
    return taken_s


async def many_surfaces(connection: Connection, task: Task) -> LoadResult:
    """Programs without calls in a realm that gets many surfaces and loses them: ``without`` and
    ``offered``; ``added``, the time of the change; ``taken_up``, of a session's first run after it,
    less that of its second."""
    del connection
    runs = _Runs(task)
    start_s = perf_counter()
    async with url_of_many(task) as url, Client(task.client_url) as client:
        source = SurfaceSource(kind=SurfaceKind.MCP_HTTP, url=url, policy=_POLICY)
        without_s = await runs.measure(client)
        begun_s = perf_counter()
        async with _added(client, {f"s{number}": source for number in range(task.entities)}):
            added_s = perf_counter() - begun_s
            first_s = await runs.of_each_session(client)
            offered_s = await runs.measure(client)
        without_s += await runs.measure(client)
    second_s = offered_s[: len(first_s)]
    longer_s = [one - other for one, other in zip(first_s, second_s, strict=True)]
    taken = {"without": without_s, "offered": offered_s, "added": [added_s], "taken_up": longer_s}
    figures = {name: 1e6 * percentile(found, 0.5) for name, found in taken.items()}
    return replace(timed(offered_s, perf_counter() - start_s), figures=figures)


class _Runs:
    """Programs without calls, one after the other in each of ``task.entities`` sessions."""

    def __init__(self, task: Task) -> None:
        self._task, self._next = task, 0

    async def of_each_session(self, client: Client) -> list[float]:
        """How long a run takes in each session."""
        first, self._next = self._next, self._next + self._task.entities
        numbers = range(first, self._next)
        return [await timed_run(client, self._task, number, PLAIN) for number in numbers]

    async def measure(self, client: Client) -> list[float]:
        """The times of runs in sessions that had one in the present state of the realm."""
        await self.of_each_session(client)
        found: list[float] = []
        for _ in range(_ROUNDS):
            found += await self.of_each_session(client)
        return found


@asynccontextmanager
async def _added(client: Client, sources: Mapping[str, SurfaceSource]) -> AsyncIterator[None]:
    """The realm has these surfaces in this block."""
    await _change(client, ChangeCatalogue(add=dict(sources)))
    try:
        yield
    finally:
        await _change(client, ChangeCatalogue(remove=tuple(sources)))


async def _change(client: Client, change: ChangeCatalogue) -> None:
    await client.ask("catalogue", REALM_KEY, change, timeout_s=_CHANGE_S)
