"""Runs through the session family of a whole node: accepted, prepared, committed, answered.

There is no turn between prepared and committed yet, so this is what admission and the kernel add to
a run: two commits, the feed and the answer.
"""

from __future__ import annotations

from rookery.ops.bench.harness import baselines
from rookery.ops.bench.harness.baselines import JS_PUBLISH
from rookery.ops.bench.harness.harness import Harness
from rookery.ops.bench.harness.result_rows import Figure, Round, Sync

__all__ = ["lines", "measure"]

_SESSIONS = 1_000
_P50 = "run request to receipt, warm session, p50"
_P99 = "run request to receipt, warm session, p99"
_RATE = "runs, 64 sessions at a time"


def lines(sync: Sync) -> tuple[Figure, ...]:
    del sync
    return (
        Figure(JS_PUBLISH, "us"),
        Figure(_P50, "us", JS_PUBLISH),
        Figure(_P99, "us"),
        Figure(_RATE, "/s"),
    )


def measure(lab: Harness) -> Round:
    measured = baselines.js_publish(lab)
    with lab.node("whole"):
        lab.load("runs", _SESSIONS, window=64, cell="warm")
        one = lab.load("runs", 500, cell="w1")
        many = lab.load("runs", 3_000, window=64, cell="w64")
    return {**measured, _P50: one.p50_us, _P99: one.p99_us, _RATE: many.rate}
