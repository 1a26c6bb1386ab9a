"""From the append of a fact to a live subscriber who has it, with nothing else going on."""

from __future__ import annotations

from rookery.ops.bench import yardsticks
from rookery.ops.bench.lab import Lab
from rookery.ops.bench.rows import Line, Round, Sync
from rookery.ops.bench.yardsticks import PUSH

__all__ = ["lines", "measure"]

_COUNT = 1_000
_P50 = "fact appended to follower of the feed, p50"
_P99 = "fact appended to follower of the feed, p99"


def lines(sync: Sync) -> tuple[Line, ...]:
    return (
        Line(PUSH, "us"),
        Line(_P50, "us", PUSH, at_most=1.5 if sync == "always" else None),
        Line(_P99, "us"),
    )


def measure(lab: Lab) -> Round:
    raw = yardsticks.push(lab)
    ours = lab.load("feed", _COUNT)
    return {**raw, _P50: ours.p50_us, _P99: ours.p99_us}
