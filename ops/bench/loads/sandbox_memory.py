"""A process that opens sandboxes and reports the growth of its memory."""

from __future__ import annotations

import os
import sys
from time import perf_counter

import msgspec

from rookery.actors.sandbox import Sandbox
from rookery.actors.sandbox.python import GuestCache, cache_folder, write_stderr
from rookery.actors.sandbox.runtime import make_engine, open_python_guest
from rookery.ops.bench.harness.process_usage import resident_bytes
from rookery.ops.bench.harness.task import Task
from rookery.schemas.run import RunRequest

__all__ = ["MemoryGrowth", "report_memory"]


class MemoryGrowth(msgspec.Struct):
    """Bytes of memory per session, and seconds to the first result."""

    first_s: float
    """From the start of ``report_memory``, without imports."""
    live_bytes: float
    resting_bytes: float
    """As the sandbox counts it, which varies less than the allocator's figures."""


def report_memory(task: Task) -> None:
    """Print the ``MemoryGrowth`` of ``task.count`` sessions."""
    begun_s = perf_counter()
    engine = make_engine()
    guest = open_python_guest(engine, GuestCache(cache_folder(os.environ)), write_stderr)
    with Sandbox(engine, [guest], b"bench", live_max=2 * task.count, live_mb_max=1 << 20) as live:
        _open(live, "first")
        first_s = perf_counter() - begun_s
        live_bytes = _measure_growth(live, task.count)
    with Sandbox(engine, [guest], b"bench", live_max=1) as resting:
        for number in range(task.count + 1):  # The last one stays live.
            _open(resting, f"s{number}")
        resting_bytes = resting.suspended_bytes / task.count
    memory = MemoryGrowth(first_s, live_bytes, resting_bytes)
    sys.stdout.buffer.write(msgspec.json.encode(memory))


def _measure_growth(sandbox: Sandbox, count: int) -> float:
    for number in range(count // 2):  # Afterwards the memory shared between sessions is allocated.
        _open(sandbox, f"before-{number}")
    before = resident_bytes()
    for number in range(count):
        _open(sandbox, f"s{number}")
    return (resident_bytes() - before) / count


def _open(sandbox: Sandbox, name: str) -> None:
    sandbox.create(name, seed=b"", now_ms=0)
    sandbox.run(RunRequest(session_id=name, code="x = 1"), now_ms=0)
