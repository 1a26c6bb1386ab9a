"""The counters of client, node, server and streams, read before and after a load; and disk syncs.

The server counts what each connection published. Streams count what was appended. Processes count
their processor time and switches.

``strace`` counts the fsyncs of a process: Linux counts them nowhere else by process. A traced
server is slower, so its fsyncs are counted in a pass of their own. Without ``strace``, or where the
system does not let it attach, there is a reason instead of a count.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from rookery.bus.clock import wait_until
from rookery.bus.nats import Connection, Outgoing
from rookery.bus.subjects import Subjects
from rookery.ops.bench.harness.harness import NodeProcess
from rookery.ops.bench.harness.process_usage import ProcessUsage, usage_here, usage_of

__all__ = [
    "BENCH",
    "Counters",
    "StreamCounts",
    "SyncCount",
    "costs",
    "count_now",
    "count_syncs",
    "settle",
]

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


_CALLS = ("fsync", "fdatasync")
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
    command = [strace, "-f", "-qq", "-e", f"trace={','.join(_CALLS)}", "-o", str(trace)]
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
    return any(f" {call}(" in line for call in _CALLS)
