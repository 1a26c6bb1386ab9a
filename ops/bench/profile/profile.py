"""What one ``1+1`` and one tool call cost, by the counters of client, node, server and streams."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import msgspec

from rookery.bus.client import Client
from rookery.bus.clock import wait_until
from rookery.bus.event_loop import new_event_loop
from rookery.bus.nats import Connection, Outgoing
from rookery.bus.subjects import Subjects
from rookery.ops.bench.harness.baselines import JS_PUBLISH
from rookery.ops.bench.harness.harness import Harness, NodeProcess
from rookery.ops.bench.harness.process_usage import ProcessUsage, usage_here, usage_of
from rookery.ops.bench.harness.result_rows import describe_machine, percentile
from rookery.ops.bench.history.history import RecordRow
from rookery.schemas.errors import Failed

__all__ = [
    "BENCH",
    "CALL",
    "RUN",
    "CostRow",
    "Counters",
    "Profile",
    "StreamCounts",
    "SyncCount",
    "costs",
    "count_now",
    "count_syncs",
    "measure_profile",
    "profile_node",
    "settle",
]

# --- counters -------------------------------------------------------------------------------------

# The counters of client, node, server and streams, read before and after a load; and disk syncs.
#
# The server counts what each connection published. Streams count what was appended. Processes count
# their processor time and switches.
#
# ``strace`` counts the fsyncs of a process: Linux counts them nowhere else by process. A traced
# server is slower, so its fsyncs are counted in a pass of their own. Without ``strace``, or where
# the system does not let it attach, there is a reason instead of a count.


BENCH = "rookery-bench"
"""The name of the connection that reads the counters; it is not counted."""
_CONNECTIONS = "$SYS.REQ.ACCOUNT.PING.CONNZ"
_QUIET_S = 0.25


class StreamCounts(msgspec.Struct, frozen=True):
    """A stream since it was created, and the bytes it stores now."""

    messages: int
    stored_bytes: int


class Counters(msgspec.Struct, frozen=True, kw_only=True):
    """All counters at one time."""

    client: ProcessUsage
    node: ProcessUsage
    server: ProcessUsage
    streams: Mapping[str, StreamCounts]
    published: Mapping[str, int]
    """Messages that connections of this name sent to the server."""
    published_bytes: Mapping[str, int]


async def count_now(connection: Connection, node: NodeProcess, server_pid: int) -> Counters:
    """Read processes first, since reading the others costs the server something."""
    client_used, node_used, server_used = usage_here(), node.usage(), usage_of(server_pid)
    await settle(connection)
    answer = await connection.request(Outgoing(_CONNECTIONS, b""))
    published: Counter[str] = Counter()
    published_bytes: Counter[str] = Counter()
    for client in msgspec.json.decode(answer.body)["data"]["connections"]:
        if client.get("name") != BENCH:
            published[client.get("name", "")] += client["in_msgs"]
            published_bytes[client.get("name", "")] += client["in_bytes"]
    return Counters(
        client=client_used,
        node=node_used,
        server=server_used,
        streams=await _streams(connection),
        published=published,
        published_bytes=published_bytes,
    )


async def settle(connection: Connection) -> None:
    """Wait until the journal stops growing; a run's last message follows its result."""
    last, seen = -1, await _journal_messages(connection)
    while seen != last:
        await asyncio.sleep(_QUIET_S)
        last, seen = seen, await _journal_messages(connection)


def costs(before: Counters, after: Counters, runs: int) -> dict[str, tuple[float, str]]:
    """Value and unit by name, for one of ``runs``."""
    node, server = after.node.since(before.node), after.server.since(before.server)
    named = sum(thread.cpu_s for thread in node.threads)
    ms, each = 1e3 / runs, 1 / runs
    found = {
        "CPU, client": (ms * after.client.since(before.client).cpu_s, "ms"),
        "CPU, node": (ms * node.cpu_s, "ms"),
        **{f"CPU, node: {t.role}": (ms * t.cpu_s, "ms") for t in node.threads},
        "CPU, node: ended threads": (ms * max(0.0, node.cpu_s - named), "ms"),
        "CPU, server": (ms * server.cpu_s, "ms"),
    }
    for part, used in (("node", node), ("server", server)):
        found[f"switches, {part}, voluntary"] = (each * used.voluntary, "")
        found[f"switches, {part}, involuntary"] = (each * used.involuntary, "")
    for name in sorted(after.published):
        messages = after.published[name] - before.published.get(name, 0)
        size_bytes = after.published_bytes[name] - before.published_bytes.get(name, 0)
        found[f"published by {name}, messages"] = (each * messages, "")
        found[f"published by {name}, bytes"] = (each * size_bytes, "B")
    return found | _stream_costs(before, after, each)


def _stream_costs(before: Counters, after: Counters, each: float) -> dict[str, tuple[float, str]]:
    """The journal and every other stream that has grown."""
    found = {}
    journal = Subjects("default").journal_stream
    for name, now in sorted(after.streams.items()):
        then = before.streams.get(name, StreamCounts(0, 0))
        if name != journal and now.messages == then.messages:
            continue
        found[f"appended to {name}, messages"] = (each * (now.messages - then.messages), "")
        found[f"stored in {name}, bytes"] = (each * (now.stored_bytes - then.stored_bytes), "B")
    return found


async def _journal_messages(connection: Connection) -> int:
    info = await connection.api(f"STREAM.INFO.{Subjects('default').journal_stream}")
    messages: int = info["state"]["last_seq"]
    return messages


async def _streams(connection: Connection) -> dict[str, StreamCounts]:
    listed = await connection.api("STREAM.LIST")
    return {
        stream["config"]["name"]: StreamCounts(
            stream["state"]["last_seq"], stream["state"]["bytes"]
        )
        for stream in listed["streams"]
    }


_SYNC_CALLS = ("fsync", "fdatasync")
_PATIENCE_S = 10.0
_TRACER = "TracerPid:"


class SyncCount:
    """The count of a traced block, known after its end."""

    def __init__(self) -> None:
        self.syncs = 0
        self.reason = ""
        """Why nothing was counted."""


@contextmanager
def count_syncs(pid: int, scratch: Path) -> Iterator[SyncCount]:
    """Count the fsyncs of ``pid`` within this block; ``scratch`` is a folder for the trace."""
    count = SyncCount()
    strace = shutil.which("strace")
    if strace is None:
        count.reason = "strace is not installed (Debian package strace)"
        yield count
        return
    trace = scratch / "fsyncs"
    command = [strace, "-f", "-qq", "-e", f"trace={','.join(_SYNC_CALLS)}", "-o", str(trace)]
    tracer = subprocess.Popen(
        [*command, "-p", str(pid)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: tracer.poll() is not None or _is_traced(pid), _PATIENCE_S)
        yield count
    finally:
        tracer.send_signal(signal.SIGINT)
        _, complaint = tracer.communicate(timeout=_PATIENCE_S)
    lines = trace.read_text().splitlines() if trace.exists() else []
    count.syncs = sum(_begins(line) for line in lines)
    if not lines and complaint:
        count.reason = f"strace: {complaint.strip().splitlines()[-1]}"


def _is_traced(pid: int) -> bool:
    """Whether a tracer is attached to every thread."""
    return all(
        f"{_TRACER}\t0" not in status.read_text()
        for status in Path("/proc", str(pid), "task").glob("*/status")
    )


def _begins(line: str) -> bool:
    """Whether a line of the trace begins a call: ``resumed`` lines only end one."""
    return any(f" {call}(" in line for call in _SYNC_CALLS)


# --- profile --------------------------------------------------------------------------------------

# What one ``1+1`` and one tool call cost: processor time by part, switches, messages, fsyncs.
#
# The node is as ``rookery up`` starts it, with a tool that does nothing, and runs follow each other
# in one warm session. A call's cost is a tenth of the difference between a program of ten calls,
# one after the other, and ``1+1``. Since machines differ, latencies are also given relative to that
# of ``js.publish``, and processor times to what ``js.publish`` costs the server, each the mean of
# before and after. Counts need no baseline.


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

    def record_rows(self) -> list[RecordRow]:
        """The rows for the history: times relative to ``js.publish``, counts for one run or call.

        What varies from minute to minute stays out: the share of each thread, switches forced by
        the system, and the slowest run.
        """
        return [
            RecordRow(
                name=f"profile, {row.work}: {row.name}",
                ratio=round(row.value if row.ratio is None else row.ratio, 3),
                to=row.ratio_to or f"one {row.work}",
            )
            for row in self.rows
            if row.value > 0 and not any(word in row.name for word in _UNSTEADY)
        ]


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
