"""Programs that are blocked in a synchronous call do not keep others from work."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import wasmtime

from rookery.actors.sandbox import ProgramCall, Sandbox, ToolResult
from rookery.actors.sandbox.python.python_guest import PythonGuest
from rookery.actors.sandbox.runtime.guest_threads import GuestThreads
from rookery.schemas.run import RunRequest, SessionLimits
from tests.sandbox.session_fixture import KEY, TOOLS, Stage


class Hall:
    """Calls that arrive stay until ``open``, and are counted meanwhile."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.changed = threading.Condition()
        self.inside = self.most = 0

    def answer(self, _call: ProgramCall) -> ToolResult:
        with self.changed:
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.changed.notify_all()
        self.open.wait(30)
        with self.changed:
            self.inside -= 1
        return ToolResult(1)

    def hold(self, count: int, timeout_s: float = 30) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.inside >= count, timeout_s)


def _in_calls(sandbox: Sandbox, count: int, hall: Hall) -> list[Any]:
    limits = SessionLimits(wall_ms=60_000)
    for n in range(count):
        sandbox.create(f"in-{n}", seed=b"", now_ms=0, tools=TOOLS, limits=limits)
    requests = [RunRequest(session_id=f"in-{n}", code="add(1)") for n in range(count)]
    return [sandbox.submit(request, answer=hall.answer, now_ms=0) for request in requests]


def test_threads_blocked_in_calls_do_not_stop_other_runs(
    engine: wasmtime.Engine, guest: PythonGuest
):
    hall = Hall()
    with Sandbox(engine, [guest], KEY, threads_max=2) as sandbox:
        futures = _in_calls(sandbox, 24, hall)
        assert hall.hold(24)
        assert Stage(sandbox, "busy").value("sum(range(10))") == 45
        assert sandbox.cancel("in-0") is None
        assert futures[0].result(90).status == "cancelled"
        hall.open.set()
        assert [future.result(30).result for future in futures[1:]] == [1] * 23
        assert Stage(sandbox, "after").value("1") == 1


@pytest.mark.parametrize("bound", [{"blocked_max": 3}, {"live_mb_max": 60}])
def test_extra_threads_are_limited_by_number_and_memory(
    engine: wasmtime.Engine, guest: PythonGuest, bound: dict[str, int]
):
    """An instance holds more than 16 MiB."""
    hall = Hall()
    with Sandbox(engine, [guest], KEY, threads_max=1, **bound) as sandbox:
        futures = _in_calls(sandbox, 8, hall)
        assert hall.hold(4)
        assert not hall.hold(5, timeout_s=0.2)
        hall.open.set()
        assert [future.result(30).result for future in futures] == [1] * 8
        assert hall.most == 4


def test_threads_above_the_limit_exit():
    """Those that stood still, when they go on, and those that worked in their place."""
    workers, leave, done = GuestThreads(1), threading.Event(), threading.Event()
    seen: set[threading.Thread] = set()
    moved = threading.Semaphore(0)

    def stand() -> None:
        seen.add(threading.current_thread())
        moved.release()
        leave.wait(30)
        moved.release()

    for _ in range(4):
        workers.submit(stand)
        assert moved.acquire(timeout=90)
        workers.allow_extra(seen)
    leave.set()
    for _ in range(4):
        assert moved.acquire(timeout=90)
    workers.allow_extra(())
    deadline_s = time.monotonic() + 90
    while len(kept := [thread for thread in seen if thread.is_alive()]) > 1:
        assert time.monotonic() < deadline_s
        kept[0].join(0.01)
    assert len(kept) == 1
    workers.submit(done.set)
    assert done.wait(90)
    workers.close()
    assert not kept[0].is_alive()
