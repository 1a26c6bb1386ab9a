"""The baselines, measured in the same round as the bench: JetStream and the disk without Rookery.

There are two baselines for publishing: *raw* uses Rookery's batching connection and only counts
acks; *nats-py* is the code that a user of the stock client writes.
"""

from __future__ import annotations

import os
from time import perf_counter

from rookery.ops.bench.harness.harness import Harness
from rookery.ops.bench.harness.result_rows import Round, percentile

__all__ = [
    "FSYNC",
    "JS_PUBLISH",
    "JS_PUBLISH_P99",
    "PUSH",
    "RAW_ONE",
    "WINDOWS",
    "fsync",
    "js_publish",
    "push",
    "raw_many",
    "raw_one",
    "raw_rate",
    "thin_many",
    "thin_rate",
]

WINDOWS = (64, 1_024)

FSYNC = "one write and fsync, p50"
JS_PUBLISH = "nats-py js.publish, p50"
JS_PUBLISH_P99 = "nats-py js.publish, p99"
RAW_ONE = "raw publish with ack, p50"
PUSH = "raw publish to push subscriber, p50"

_FSYNCS = 200
_COUNT = {"always": 4_000, "default": 40_000}
_ONE_BY_ONE = 1_000


def raw_rate(window: int) -> str:
    """The name of the figure."""
    return f"raw publish, {window:,} in flight"


def thin_rate(window: int) -> str:
    """The name of the figure."""
    return f"nats-py publish, {window:,} in flight"


def fsync(harness: Harness) -> Round:
    """The disk below the server; far below 100 us it is no real disk, and figures mean little."""
    taken_s = []
    path = harness.store / "fsync"
    with path.open("wb", buffering=0) as file:
        for _ in range(harness.count(_FSYNCS)):
            start_s = perf_counter()
            file.write(bytes(4096))
            os.fsync(file.fileno())
            taken_s.append(perf_counter() - start_s)
    path.unlink()
    return {FSYNC: 1e6 * percentile(taken_s, 0.5)}


def js_publish(harness: Harness) -> Round:
    outcome = harness.load("js_publish", _ONE_BY_ONE)
    return {JS_PUBLISH: outcome.p50_us, JS_PUBLISH_P99: outcome.p99_us}


def raw_one(harness: Harness) -> Round:
    return {RAW_ONE: harness.load("piped", _ONE_BY_ONE).p50_us}


def raw_many(harness: Harness, *windows: int) -> Round:
    count = _COUNT[harness.sync]
    return {raw_rate(w): harness.load("piped", count, window=w).rate for w in windows}


def thin_many(harness: Harness, *windows: int) -> Round:
    count = _COUNT[harness.sync]
    return {thin_rate(w): harness.load("thin", count, window=w).rate for w in windows}


def push(harness: Harness) -> Round:
    return {PUSH: harness.load("push", _ONE_BY_ONE).p50_us}
