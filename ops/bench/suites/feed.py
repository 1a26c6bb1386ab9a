"""From the append of a fact to its arrival at a live subscriber, without other load."""

from __future__ import annotations

from rookery.ops.bench.harness import baselines
from rookery.ops.bench.harness.baselines import PUSH
from rookery.ops.bench.harness.harness import Harness
from rookery.ops.bench.harness.result_rows import Figure, Round, Sync

__all__ = ["lines", "measure"]

_COUNT = 1_000
_P50 = "fact appended to follower of the feed, p50"
_P99 = "fact appended to follower of the feed, p99"


def lines(sync: Sync) -> tuple[Figure, ...]:
    return (
        Figure(PUSH, "us"),
        Figure(_P50, "us", PUSH, at_most=1.5 if sync == "always" else None),
        Figure(_P99, "us"),
    )


def measure(harness: Harness) -> Round:
    raw = baselines.push(harness)
    ours = harness.load("feed", _COUNT)
    return {**raw, _P50: ours.p50_us, _P99: ours.p99_us}
