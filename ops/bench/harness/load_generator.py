"""The load generator: a process that runs one task against a server and prints the result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import msgspec

from rookery.bus.event_loop import new_event_loop
from rookery.bus.nats import Connection
from rookery.ops.bench.harness.load import LoadResult, Task
from rookery.ops.bench.loads import (
    approval_load,
    command_load,
    jetstream_load,
    lease_load,
    rebuild_load,
    run_load,
    surface_load,
)

__all__ = ["generate"]

_KINDS: Mapping[str, Callable[[Connection, Task], Awaitable[LoadResult]]] = {
    "begin_leases": lease_load.begin_leases,
    "calls": run_load.calls,
    "decided": approval_load.decide_approvals,
    "feed": command_load.feed,
    "fill": rebuild_load.fill,
    "fold_sessions": rebuild_load.fold_sessions,
    "fold_turns": rebuild_load.fold_turns,
    "inbox": command_load.inbox,
    "js_publish": jetstream_load.js_publish,
    "lease_calls": lease_load.lease_calls,
    "looked_at": approval_load.touch_sessions,
    "many_surfaces": surface_load.many_surfaces,
    "mcp_calls": surface_load.mcp_calls,
    "parked": approval_load.park_runs,
    "piped": jetstream_load.publish_pipelined,
    "programs": run_load.programs,
    "counted_programs": run_load.counted_programs,
    "push": jetstream_load.push,
    "read_and_fold": rebuild_load.read_and_fold,
    "refresh_leases": lease_load.refresh_leases,
    "requests": command_load.requests,
    "runs": run_load.runs,
    "thin": jetstream_load.publish_thin,
    "woken": approval_load.wake_runs,
}


_BASELINES: Final = frozenset({"js_publish", "piped", "push", "thin"})
"""Loads of the server alone, on streams of their own; the others speak to nodes."""


def generate(task: Task) -> None:
    """Run the task and print its result as JSON."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        outcome = runner.run(_connected(task))
    print(msgspec.json.encode(outcome).decode(), flush=True)


async def _connected(task: Task) -> LoadResult:
    connection = Connection(task.admin_url if task.kind in _BASELINES else task.url)
    await connection.open()
    try:
        return await _KINDS[task.kind](connection, task)
    finally:
        await connection.close()
