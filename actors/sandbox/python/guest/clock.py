"""Time inside the guest: one clock, the host's, for everything that tells time.

The host answers the wall clock of WASI, seeded and ticking per reading. Monotonic clocks are made
from it here, because one of the two ways to host a guest cannot replace them; sleeping tells the
host to let time pass and returns at once.
"""

from __future__ import annotations

import time

from wit_world import pass_time

__all__ = ["install", "now_ns"]

now_ns = time.time_ns

_IN_NS = ("monotonic_ns", "perf_counter_ns", "process_time_ns", "thread_time_ns")
_IN_S = ("monotonic", "perf_counter", "process_time", "thread_time")


def _now_s() -> float:
    return now_ns() / 1e9


def _sleep(seconds: float, /) -> None:
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    pass_time(min(int(seconds * 1e9), 1 << 62))


def install() -> None:
    for name in _IN_NS:
        setattr(time, name, now_ns)
    for name in _IN_S:
        setattr(time, name, _now_s)
    time.sleep = _sleep  # type: ignore[assignment]
