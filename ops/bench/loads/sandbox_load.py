"""The loads on a sandbox: one function per figure, in milliseconds unless its name differs.

``report_memory`` is a process of its own, which opens sandboxes and reports the growth of its
memory.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from statistics import median
from threading import Event
from time import perf_counter
from typing import Any, NamedTuple

import msgspec

from rookery.actors.sandbox import (
    CallTool,
    Guest,
    Outcome,
    PendingResult,
    ProgramCall,
    Sandbox,
    SuspendedRun,
    Tool,
    ToolResult,
    answering,
)
from rookery.actors.sandbox.python import GuestCache, cache_folder, write_stderr
from rookery.actors.sandbox.runtime import Engine, make_engine, open_python_guest
from rookery.actors.sandbox.typescript import JavaScriptGuest
from rookery.ops.bench.harness.load import Task
from rookery.ops.bench.harness.process_usage import resident_bytes
from rookery.schemas.errors import Failed
from rookery.schemas.run import (
    Language,
    RunLimits,
    RunRequest,
    RunResult,
    SessionLimits,
    SideEffect,
)

__all__ = [
    "BenchSession",
    "MemoryGrowth",
    "SnapshotTimes",
    "fresh_ms",
    "open_guests",
    "overrun_ms",
    "report_memory",
    "resume_ms",
    "snapshot_times",
    "timed_ms",
]

_TOOLS = (
    Tool(name="add"),
    Tool(name="fetch", awaited=True, side_effect=SideEffect.READ),
)
_GENEROUS = SessionLimits(cpu_ms=60_000, wall_ms=60_000, max_external_calls=10_000)
_PACE_S = 0.05
"""Long enough for the pool to create another instance, so that a full pool is measured."""
_LIMIT_MS = 100
_RUNAWAYS = ("while True: pass", "3 ** (3 ** 19)", "add(1)")


def _sum(*numbers: int) -> int:
    return sum(numbers)


_ANSWERS = answering({"add": _sum, "fetch": _sum})


def _value(outcome: Outcome) -> Any:
    if not isinstance(outcome, RunResult) or outcome.error is not None:
        raise Failed("NODE_FAILED", f"a program of the bench ended as {outcome}")
    return outcome.result


@cache
def open_guests() -> tuple[Engine, list[Guest]]:
    """The engine and the guests of both languages, once a process."""
    engine, cache = make_engine(), GuestCache(cache_folder(os.environ))
    return engine, [open_python_guest(engine, cache, write_stderr), JavaScriptGuest(engine, cache)]


class BenchSession:
    """One session of a sandbox, with tools that add up."""

    def __init__(self, sandbox: Sandbox, name: str, language: Language = Language.PYTHON) -> None:
        self.sandbox, self.name, self.language = sandbox, name, language
        sandbox.create(
            name, seed=b"bench", now_ms=0, language=language, tools=_TOOLS, limits=_GENEROUS
        )

    def run(self, code: str, answer: CallTool = _ANSWERS) -> Any:
        return _value(self.sandbox.run(self._request(code), answer=answer, now_ms=0))

    def run_beside_loop(self, code: str) -> Any:
        """Run with each call answered by a task of an event loop, as a node does."""
        return asyncio.run(self._run_beside_loop(code))

    async def _run_beside_loop(self, code: str) -> Any:
        loop, thread = asyncio.get_running_loop(), threading.get_ident()
        tasks = set[asyncio.Task[None]]()

        async def bring(call: ProgramCall, result: PendingResult) -> None:
            result.set_result(_ANSWERS(call))

        def begin(call: ProgramCall, result: PendingResult) -> None:
            task = loop.create_task(bring(call, result))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        def answer(call: ProgramCall) -> PendingResult:
            result: PendingResult = Future()
            if threading.get_ident() == thread:
                begin(call, result)
            else:
                loop.call_soon_threadsafe(begin, call, result)
            return result

        run = self.sandbox.submit(self._request(code), answer=answer, now_ms=0, here=True)
        return _value(await asyncio.wrap_future(run))

    def wait(self, code: str) -> None:
        """Run until the program waits for a call, and do not answer it."""
        if not isinstance(self.sandbox.run(self._request(code), now_ms=0), SuspendedRun):
            raise Failed("NODE_FAILED", "a program of the bench does not wait")

    def end(self) -> None:
        self.sandbox.destroy(self.name)

    def _request(self, code: str) -> RunRequest:
        return RunRequest(session_id=self.name, language=self.language, code=code)


def timed_ms(act: Callable[[], object]) -> float:
    start_s = perf_counter()
    act()
    return (perf_counter() - start_s) * 1e3


def fresh_ms(sandbox: Sandbox, code: str, count: int, language: Language) -> float:
    """The time to create a session and run its first turn."""
    taken = []
    for number in range(count):
        _wait_for_pool()
        start_s = perf_counter()
        session = BenchSession(sandbox, f"fresh-{number}", language)
        session.run(code)
        taken.append((perf_counter() - start_s) * 1e3)
        session.end()
    return median(taken)


def _wait_for_pool() -> None:
    Event().wait(_PACE_S)


class SnapshotTimes(NamedTuple):
    """The times of a snapshot and of its restore."""

    snapshot_ms: float
    size_kb: float
    restore_ms: float
    """With the first turn after it."""


def snapshot_times(sandbox: Sandbox, setup: str, count: int) -> SnapshotTimes:
    """The times for a session that ran ``setup``, with a new value each time."""
    session = BenchSession(sandbox, "sleeper")
    session.run(setup)
    snapshots, restores, size_bytes = [], [], 0
    for number in range(count):
        session.run(f"n = {number}")
        start_s = perf_counter()
        data = sandbox.snapshot("sleeper").data
        snapshots.append((perf_counter() - start_s) * 1e3)
        size_bytes = len(data)
        session.end()
        _wait_for_pool()
        start_s = perf_counter()
        sandbox.restore(data, tools=_TOOLS)
        session.run("n")
        restores.append((perf_counter() - start_s) * 1e3)
    session.end()
    return SnapshotTimes(median(snapshots), size_bytes / 1000, median(restores))


def resume_ms(sandbox: Sandbox, code: str, count: int) -> float:
    """The time from the snapshot and the answer of a waiting run to its result."""
    taken = []
    for _ in range(count):
        session = BenchSession(sandbox, "waiter")
        session.wait(code)
        data = sandbox.snapshot("waiter").data
        session.end()
        _wait_for_pool()
        start_s = perf_counter()
        sandbox.restore(data, tools=_TOOLS)
        sandbox.resume("waiter", {1: ToolResult(1)}, answer=_ANSWERS)
        taken.append((perf_counter() - start_s) * 1e3)
        session.end()
    return median(taken)


def overrun_ms(sandbox: Sandbox) -> float:
    """The longest time from a runaway program's limit to its result."""
    return max(_overrun_of_program_ms(sandbox, code) for code in _RUNAWAYS)


def _overrun_of_program_ms(sandbox: Sandbox, code: str) -> float:
    """The time after the limit for one program: a loop, a C function, or a tool without end."""
    finish = Event()

    def stuck(_call: ProgramCall) -> ToolResult:
        finish.wait()
        return ToolResult(1)

    BenchSession(sandbox, "runaway")
    limits = RunLimits(wall_ms=_LIMIT_MS)
    request = RunRequest(session_id="runaway", code=code, limits=limits)
    try:
        return timed_ms(lambda: sandbox.run(request, answer=stuck, now_ms=0)) - _LIMIT_MS
    finally:
        finish.set()
        sandbox.destroy("runaway")


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
