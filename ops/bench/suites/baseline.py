"""The machine and the server alone: every baseline once."""

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


def measure(harness: Harness) -> Round:
    return {
        **baselines.fsync(harness),
        **baselines.js_publish(harness),
        **baselines.raw_one(harness),
        **baselines.push(harness),
        **baselines.raw_many(harness, *baselines.WINDOWS),
        **baselines.thin_many(harness, *baselines.WINDOWS),
    }
