"""The machine and the server by themselves: every yardstick once."""

from __future__ import annotations

from rookery.ops.bench.harness import baselines
from rookery.ops.bench.harness.harness import Harness
from rookery.ops.bench.harness.result_rows import Figure, Round, Sync

__all__ = ["lines", "measure"]


def lines(sync: Sync) -> tuple[Figure, ...]:
    del sync
    latencies = (
        baselines.FSYNC,
        baselines.JS_PUBLISH,
        baselines.JS_PUBLISH_P99,
        baselines.RAW_ONE,
        baselines.PUSH,
    )
    rates = [
        name(window)
        for window in baselines.WINDOWS
        for name in (baselines.raw_rate, baselines.thin_rate)
    ]
    return (*(Figure(name, "us") for name in latencies), *(Figure(name, "/s") for name in rates))


def measure(lab: Harness) -> Round:
    return {
        **baselines.fsync(lab),
        **baselines.js_publish(lab),
        **baselines.raw_one(lab),
        **baselines.push(lab),
        **baselines.raw_many(lab, *baselines.WINDOWS),
        **baselines.thin_many(lab, *baselines.WINDOWS),
    }
