"""The load generator: a process that runs one task against a server and prints the result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pkgutil import resolve_name
from typing import Final

import msgspec

from rookery.bus.event_loop import new_event_loop
from rookery.bus.nats import Connection
from rookery.ops.bench.harness.load import LoadResult, Task

__all__ = ["generate"]

_KINDS: Mapping[str, str] = {
    "begin_leases": "lease_load:begin_leases",
    "calls": "run_load:calls",
    "decided": "approval_load:decide_approvals",
    "check_envelopes": "peer_load:check_envelopes",
    "exchanges": "peer_load:exchanges",
    "feed": "command_load:feed",
    "fill": "rebuild_load:fill",
    "fold_sessions": "rebuild_load:fold_sessions",
    "fold_turns": "rebuild_load:fold_turns",
    "hook_calls": "hook_load:hook_calls",
    "inbox": "command_load:inbox",
    "js_publish": "jetstream_load:js_publish",
    "lease_calls": "lease_load:lease_calls",
    "looked_at": "approval_load:touch_sessions",
    "many_surfaces": "surface_load:many_surfaces",
    "mcp_calls": "surface_load:mcp_calls",
    "open_requests": "peer_load:open_requests",
    "parked": "approval_load:park_runs",
    "piped": "jetstream_load:publish_pipelined",
    "programs": "run_load:programs",
    "counted_programs": "run_load:counted_programs",
    "push": "jetstream_load:push",
    "read_and_fold": "rebuild_load:read_and_fold",
    "refresh_leases": "lease_load:refresh_leases",
    "requests": "command_load:requests",
    "runs": "run_load:runs",
    "runs_beside": "peer_load:runs_beside",
    "thin": "jetstream_load:publish_thin",
    "woken": "approval_load:wake_runs",
}
"""Module and function, by name: of the loads, a process imports its own."""

_BASELINES: Final = frozenset({"js_publish", "piped", "push", "thin"})
"""Loads of the server alone, on streams of their own; the others speak to nodes."""


def generate(task: Task) -> None:
    """Run the task and print its result as JSON."""
    load = resolve_name(f"rookery.ops.bench.loads.{_KINDS[task.kind]}")
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        outcome = runner.run(_connected(load, task))
    print(msgspec.json.encode(outcome).decode(), flush=True)


async def _connected(
    load: Callable[[Connection, Task], Awaitable[LoadResult]], task: Task
) -> LoadResult:
    connection = Connection(task.admin_url if task.kind in _BASELINES else task.url)
    await connection.open()
    try:
        return await load(connection, task)
    finally:
        await connection.close()
