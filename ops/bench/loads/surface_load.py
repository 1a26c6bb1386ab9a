"""Runs with MCP servers as surfaces of the realm, which the load adds and removes, and calls by
``rookery mcp``."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

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
_REPEATED = 10
"""Calls in a row, of which a measurement is the mean."""
_IN_LOOP = "for n in range({}):\n    x = await {}(value=2)\n2"
_BY_SERVER = RunRequest(code=_IN_LOOP.format(_REPEATED, f"{_SURFACE}_same"))
_BY_NODE = RunRequest(code=_IN_LOOP.format(_REPEATED, "same_awaited"))
_LATER = RunRequest(code=_IN_LOOP.format(_REPEATED, "same_later"))
_WITHOUT_CALL = RunRequest(code=f"for n in range({_REPEATED}):\n    x = 2\n2")
_CHANGE_S = 45.0
_WARM = 3
"""Rounds before the measured ones: the first opens the sessions."""
_ROUNDS = 6
_POLICY = SurfacePolicy(
    default=ToolPolicy(approval=ApprovalMode.NONE, side_effect=SideEffect.WRITE, idempotent=True)
)


async def mcp_calls(connection: Connection, task: Task) -> LoadResult:
    """Awaited calls of one tool, ten in a row, in rounds in turn: ``alone`` over stdio by a client
    of the SDK, ``called`` over stdio by a program, ``own`` of a function of the node by a program,
    each in time and in processor time (``_cpu``) for a call, of the client or of the node;
    ``added``, what a call over stdio takes more than one of a function in the same round, whose
    answer is there at once (time) or comes later, too (processor time). ``served``: a call through
    ``rookery mcp``; ``direct``, the run which that becomes, by the client."""
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
        programs = _Programs(client, task)
        start_s = perf_counter()
        for done in range(task.count + _WARM):
            if done > _WARM and perf_counter() - start_s > task.seconds_max:
                break
            by_sdk = await _used_alone(alone)
            plain = await programs.used(_WITHOUT_CALL)
            called = (await programs.used(_BY_SERVER)).less(plain)
            by_node = (await programs.used(_BY_NODE)).less(plain)
            later = (await programs.used(_LATER)).less(plain)
            added = _Used(called.time_s - by_node.time_s, called.cpu_s - later.cpu_s)
            found = {"alone": by_sdk, "called": called, "own": by_node, "added": added}
            for name, used in found.items():
                taken[name].append(used.time_s / _REPEATED)
                taken[f"{name}_cpu"].append(used.cpu_s / _REPEATED)
            taken["served"].append(await _time(lambda: call_same(served)))
            taken["direct"].append((await programs.used(CALLING)).time_s)
        outcome = timed(taken["alone"][_WARM:], perf_counter() - start_s)
    figures = {name: 1e6 * percentile(found[_WARM:], 0.5) for name, found in taken.items()}
    return replace(outcome, figures=figures)


class _Used(NamedTuple):
    """What something took."""

    time_s: float
    cpu_s: float

    def less(self, other: _Used) -> _Used:
        return _Used(self.time_s - other.time_s, self.cpu_s - other.cpu_s)


class _Programs:
    """Runs of one session, one after the other."""

    def __init__(self, client: Client, task: Task) -> None:
        self._client, self._task, self._count = client, task, 0

    async def used(self, request: RunRequest) -> _Used:
        """The time of a run, and the processor time that the node uses for it."""
        self._count += 1
        return await _used_by_run(
            self._client,
            self._task,
            self._count * self._task.entities,
            request,
            self._task.node_pid,
        )


async def _used_by_run(
    client: Client, task: Task, number: int, request: RunRequest, node_pid: int
) -> _Used:
    before_s = usage_of(node_pid).cpu_s
    time_s = await timed_run(client, task, number, request)
    return _Used(time_s, usage_of(node_pid).cpu_s - before_s)


async def _used_alone(alone: McpClient) -> _Used:
    """What the SDK takes here for so many calls."""
    before_s, start_s = usage_here().cpu_s, perf_counter()
    for _ in range(_REPEATED):
        await call_same(alone)
    return _Used(perf_counter() - start_s, usage_here().cpu_s - before_s)


async def _time(work: Callable[[], Awaitable[object]]) -> float:
    sent_s = perf_counter()
    result = await work()
    taken_s = perf_counter() - sent_s
    if result != 2:
        raise Failed("NODE_FAILED", f"a call ended as {result}")
    return taken_s


async def many_surfaces(connection: Connection, task: Task) -> LoadResult:
    """Programs without calls in a realm with many surfaces and in one without, in turn:
    ``offered`` and ``without``, in time and in processor time of the realm's node (``_cpu``);
    ``added``, the time to add them; ``taken_up``, of a session's first run with them, less that of
    its second."""
    del connection
    taken = defaultdict[str, list[float]](list)
    start_s = perf_counter()
    async with (
        url_of_many(task) as url,
        Client(task.client_url) as client,
        Client(task.other_url, realm="plain") as plain,
    ):
        source = SurfaceSource(kind=SurfaceKind.MCP_HTTP, url=url, policy=_POLICY)
        sessions = range(task.entities)
        for number in sessions:
            for realm in (client, plain):
                await timed_run(realm, task, number, PLAIN)
        begun_s = perf_counter()
        async with _added(client, {f"s{number}": source for number in sessions}):
            taken["added"].append(perf_counter() - begun_s)
            first = [await timed_run(client, task, n + task.entities, PLAIN) for n in sessions]
            for number in range(2 * task.entities, (2 + _ROUNDS) * task.entities):
                for name, realm, node_pid in (
                    ("offered", client, task.node_pid),
                    ("without", plain, task.other_pid),
                ):
                    used = await _used_by_run(realm, task, number, PLAIN, node_pid)
                    taken[name].append(used.time_s)
                    taken[f"{name}_cpu"].append(used.cpu_s)
    pairs = zip(first, taken["offered"], strict=False)
    taken["taken_up"] = [one_s - other_s for one_s, other_s in pairs]
    figures = {name: 1e6 * percentile(found, 0.5) for name, found in taken.items()}
    return replace(timed(taken["offered"], perf_counter() - start_s), figures=figures)


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
