"""What one ``1+1`` and one tool call cost: processor time by part, switches, messages, fsyncs.

The node is as ``rookery up`` starts it, with a tool that does nothing, and runs follow each other
in one warm session. A call's cost is a tenth of the difference between a program of ten calls, one
after the other, and ``1+1``. Since machines differ, latencies are also given relative to that of
``js.publish``, and processor times to what ``js.publish`` costs the server, each the mean of before
and after. Counts need no baseline.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import Any, NamedTuple

import msgspec

from rookery.bus.client import Client
from rookery.bus.loop_thread import new_event_loop
from rookery.bus.nats import Connection
from rookery.ops.bench.harness.baselines import JS_PUBLISH
from rookery.ops.bench.harness.harness import Harness, NodeProcess
from rookery.ops.bench.harness.machine import describe_machine
from rookery.ops.bench.harness.process_usage import usage_of
from rookery.ops.bench.harness.result_rows import percentile
from rookery.ops.bench.history import RecordRow
from rookery.ops.bench.profile.counters import (
    BENCH,
    Counters,
    costs,
    count_now,
    count_syncs,
    settle,
)
from rookery.schemas.errors import Failed

__all__ = ["CALL", "RUN", "CostRow", "Profile", "measure_profile", "profile_node", "record_rows"]

RUN, CALL = "1+1", "call"
"""The works that a row is the cost of."""
_CALLS = 10
_PLAIN, _CALLING = "1+1", f"x = 0\nfor i in range({_CALLS}):\n    x = same(i)\nx"
_RESULTS = {_PLAIN: 2, _CALLING: _CALLS - 1}
_SESSION = "profile"
_WARM = 30
_PUBLISHED = 1_000
_PUBLISH_CPU = "nats-py js.publish, CPU of the server"
_P50, _P99, _SYNCS = "latency, p50", "latency, p99", "fsyncs of the server"
_UNSTEADY = ("CPU, node:", ", involuntary", _P99, "_CLAIMS")

Costs = Mapping[str, tuple[float, str]]
"""Value and unit, by name."""


class CostRow(msgspec.Struct, frozen=True, kw_only=True):
    """One cost of ``1+1`` or of one call."""

    work: str
    name: str
    value: float
    unit: str
    """Empty for a count."""
    ratio: float | None = None
    """Of a time: to the baseline of the same profile."""
    ratio_to: str | None = None


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """The costs and what they were measured on."""

    rows: tuple[CostRow, ...]
    baselines_ms: Mapping[str, float]
    calls: int
    """Calls that were measured, and as many runs of ``1+1``."""
    skipped: tuple[str, ...]
    """What was not measured, with the reason."""
    machine: dict[str, Any]


def measure_profile(calls: int) -> Profile:
    """Start a server and a node, and measure so many calls and as many runs of ``1+1``."""
    with Harness("always") as harness, harness.node("runs") as node:
        return profile_node(harness, node, calls)


def profile_node(harness: Harness, node: NodeProcess, calls: int) -> Profile:
    """Measure on this node."""
    load_before = os.getloadavg()
    before = _baselines_ms(harness)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        plain, calling, skipped = runner.run(_measure(harness, node, calls))
    after = _baselines_ms(harness)
    baselines_ms = {name: (before[name] + after[name]) / 2 for name in before}
    rows = (*_rows(RUN, plain, baselines_ms), *_rows(CALL, _call(plain, calling), baselines_ms))
    return Profile(
        rows=rows,
        baselines_ms=baselines_ms,
        calls=calls,
        skipped=(skipped,) if skipped else (),
        machine=describe_machine(load_before),
    )


def record_rows(profile: Profile) -> list[RecordRow]:
    """The rows for the history: times relative to ``js.publish``, counts for one run or call.

    What varies from minute to minute stays out: the share of each thread, switches forced by the
    system, and the slowest run.
    """
    return [
        RecordRow(
            name=f"profile, {row.work}: {row.name}",
            ratio=round(row.value if row.ratio is None else row.ratio, 3),
            to=row.ratio_to or f"one {row.work}",
        )
        for row in profile.rows
        if row.value > 0 and not any(word in row.name for word in _UNSTEADY)
    ]


async def _measure(harness: Harness, node: NodeProcess, calls: int) -> tuple[Costs, Costs, str]:
    """The costs of a run of ``1+1`` and of ten calls, and why a cost is missing."""
    connection = Connection(harness.admin_url, name=BENCH)
    await connection.open()
    try:
        async with Client(harness.client_url) as client:
            run = _RunCost(harness, node, connection, client)
            plain, reason = await run.measure(_PLAIN, calls)
            calling, _ = await run.measure(_CALLING, max(1, calls // _CALLS))
    finally:
        await connection.close()
    return plain, calling, reason


class _RunCost(NamedTuple):
    """What measures the cost of a run."""

    harness: Harness
    node: NodeProcess
    connection: Connection
    client: Client

    async def measure(self, code: str, runs: int) -> tuple[Costs, str]:
        """The costs of one of ``runs``, and why the fsyncs are not among them."""
        await _run(self.client, code, min(runs, _WARM))
        before = await self._counters()
        taken_s = await _run(self.client, code, runs)
        after = await self._counters()
        found = {
            _P50: (1e3 * percentile(taken_s, 0.5), "ms"),
            _P99: (1e3 * percentile(taken_s, 0.99), "ms"),
            **costs(before, after, runs),
        }
        with count_syncs(self.harness.server_pid, self.harness.store) as count:
            traced = max(1, runs // 3)
            await _run(self.client, code, traced)
            await settle(self.connection)
        if not count.reason:
            found[_SYNCS] = (count.syncs / traced, "")
        return found, f"{_SYNCS}: {count.reason}" if count.reason else ""

    async def _counters(self) -> Counters:
        return await count_now(self.connection, self.node, self.harness.server_pid)


async def _run(client: Client, code: str, times: int) -> list[float]:
    """How long each took, one after the other."""
    taken_s = []
    for _ in range(times):
        start_s = perf_counter()
        answer = await client.run(_SESSION, code)
        taken_s.append(perf_counter() - start_s)
        if answer.result != _RESULTS[code]:
            raise Failed("NODE_FAILED", f"a run of the profile ended as {answer}")
    return taken_s


def _call(plain: Costs, calling: Costs) -> Costs:
    """The cost of one of the calls. A p99 of a difference means nothing."""
    return {
        name: ((value - plain.get(name, (0.0, unit))[0]) / _CALLS, unit)
        for name, (value, unit) in calling.items()
        if name != _P99
    }


def _baselines_ms(harness: Harness) -> dict[str, float]:
    """What one ``js.publish`` takes, and what it costs the server."""
    before = usage_of(harness.server_pid)
    published = harness.load("js_publish", _PUBLISHED)
    used = usage_of(harness.server_pid).since(before)
    return {JS_PUBLISH: published.p50_us / 1e3, _PUBLISH_CPU: 1e3 * used.cpu_s / published.done}


def _rows(work: str, found: Costs, baselines_ms: Mapping[str, float]) -> Iterator[CostRow]:
    for name, (value, unit) in found.items():
        ratio_to = _PUBLISH_CPU if name.startswith("CPU") else JS_PUBLISH
        yield CostRow(
            work=work,
            name=name,
            value=value,
            unit=unit,
            ratio=value / baselines_ms[ratio_to] if unit == "ms" else None,
            ratio_to=ratio_to if unit == "ms" else None,
        )
