"""The time that a run has used: wall time, and CPU time of the guest.

This is the only module of the sandbox that reads clocks; a guest never sees the readings. A run may
use several threads one after the other, so the used time is part of its state.
"""

from __future__ import annotations

import time

from rookery.actors.sandbox.runtime.wasm import GuestStopped
from rookery.schemas.run import SessionLimits

__all__ = ["Stopwatch"]

_NS_PER_MS = 1_000_000


class Stopwatch:
    """Measures between ``begin`` and ``end``. CPU time is counted between ``enter_thread``, which
    ``begin`` implies, and ``leave_thread``, which the same thread calls."""

    def __init__(self, limits: SessionLimits) -> None:
        self._wall_ns_max = limits.wall_ms * _NS_PER_MS
        self._cpu_ns_max = limits.cpu_ms * _NS_PER_MS
        self.wall_ns = self.cpu_ns = 0
        self._began_ns = self._cpu_began_ns = self._host_began_ns = 0
        self._running = False

    @property
    def wall_ms(self) -> int:
        return self._wall_used_ns() // _NS_PER_MS

    @property
    def wall_is_over(self) -> bool:
        return self._wall_used_ns() > self._wall_ns_max

    def begin(self) -> None:
        self._running = True
        self._began_ns = time.perf_counter_ns()
        self.enter_thread()

    def end(self) -> None:
        self.wall_ns = self._wall_used_ns()
        self._running = False
        self.leave_thread()

    def enter_thread(self) -> None:
        self._cpu_began_ns = time.thread_time_ns()

    def leave_thread(self) -> None:
        now_ns = time.thread_time_ns()
        self.cpu_ns += now_ns - self._cpu_began_ns
        self._cpu_began_ns = now_ns

    def enter_host(self) -> None:
        """Stop counting CPU time: the guest's thread executes a host function."""
        self.leave_thread()
        self._host_began_ns = time.perf_counter_ns()

    def leave_host(self) -> int:
        """Count CPU time again; returns the milliseconds since ``enter_host``."""
        self.enter_thread()
        return (time.perf_counter_ns() - self._host_began_ns) // _NS_PER_MS

    def count_wall(self, duration_ms: int) -> None:
        """Add the time of calls that were made while the run was suspended."""
        self.wall_ns += duration_ms * _NS_PER_MS

    def check(self) -> None:
        """Raise ``GuestStopped`` if the time is over."""
        if self.wall_is_over:
            used = self._wall_ns_max // _NS_PER_MS
            raise GuestStopped("TIMEOUT_WALL", f"the run took longer than {used} ms")
        if self.cpu_ns + time.thread_time_ns() - self._cpu_began_ns > self._cpu_ns_max:
            used = self._cpu_ns_max // _NS_PER_MS
            raise GuestStopped("TIMEOUT_CPU", f"the program computed longer than {used} ms")

    def _wall_used_ns(self) -> int:
        since = time.perf_counter_ns() - self._began_ns if self._running else 0
        return self.wall_ns + since
