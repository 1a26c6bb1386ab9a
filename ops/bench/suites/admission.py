"""Runs through the session family of a whole node: accepted, prepared, committed, answered.

No turn runs between prepared and committed, so this is the share of admission and the kernel in a
run: two commits, the feed and the reply.
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


def measure(harness: Harness) -> Round:
    measured = baselines.js_publish(harness)
    with harness.node("whole"):
        harness.load("runs", _SESSIONS, window=64, cell="warm")
        one = harness.load("runs", 500, cell="w1")
        many = harness.load("runs", 3_000, window=64, cell="w64")
    return {**measured, _P50: one.p50_us, _P99: one.p99_us, _RATE: many.rate}
