"""The clock of the guest: all functions of ``time`` read the host's clock.

The host replaces the wall clock of WASI with a clock that starts at a given time and advances at
each reading. One of the two ways to host a guest cannot replace the monotonic clocks, so this
module derives them. ``sleep`` makes the host advance the clock and returns at once.
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
