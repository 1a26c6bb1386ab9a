"""The machine and the server by themselves: every yardstick once."""

from __future__ import annotations

from rookery.ops.bench import yardsticks
from rookery.ops.bench.lab import Lab
from rookery.ops.bench.rows import Line, Round, Sync

__all__ = ["lines", "measure"]


def lines(sync: Sync) -> tuple[Line, ...]:
    del sync
    latencies = (
        yardsticks.FSYNC,
        yardsticks.JS_PUBLISH,
        yardsticks.JS_PUBLISH_P99,
        yardsticks.RAW_ONE,
        yardsticks.PUSH,
    )
    rates = [
        name(window)
        for window in yardsticks.WINDOWS
        for name in (yardsticks.raw_rate, yardsticks.thin_rate)
    ]
    return (*(Line(name, "us") for name in latencies), *(Line(name, "/s") for name in rates))


def measure(lab: Lab) -> Round:
    return {
        **yardsticks.fsync(lab),
        **yardsticks.js_publish(lab),
        **yardsticks.raw_one(lab),
        **yardsticks.push(lab),
        **yardsticks.raw_many(lab, *yardsticks.WINDOWS),
        **yardsticks.thin_many(lab, *yardsticks.WINDOWS),
    }
