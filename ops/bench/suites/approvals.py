"""Approvals: answer to end of run, decisions per second, and the memory of a parked run.

The node is as ``rookery up`` starts it, with a tool that needs an approval. An answer is timed to
the end of its run, on the node that parked the run and on a node started afterwards. The target is
for the program running again, so the measured time includes more: the call and the run's end.
"""

from __future__ import annotations

from rookery.ops.bench.harness import baselines
from rookery.ops.bench.harness.baselines import raw_rate
from rookery.ops.bench.harness.harness import Harness
from rookery.ops.bench.harness.result_rows import Figure, Round, Sync

__all__ = ["lines", "measure"]

_AT_ONCE = 64
_WOKEN, _DECIDED, _PARKED, _CHUNK = 100, 500, 1_000, 250

_SAME = "answered to ended, same node, p50"
_ANOTHER = "answered to ended, another node, p50"
_RATE = f"approvals decided, {_AT_ONCE} in flight"
_PARKING = "runs parked, 16 at a time"
_MEMORY = "1,000 parked runs in a fresh node"


def lines(sync: Sync) -> tuple[Figure, ...]:
    del sync
    return (
        Figure(_SAME, "ms", at_most=60),
        Figure(_ANOTHER, "ms", at_most=60),
        Figure(raw_rate(_AT_ONCE), "/s"),
        Figure(_RATE, "/s", raw_rate(_AT_ONCE)),
        Figure(_PARKING, "/s"),
        Figure(_MEMORY, "MB", at_most=50),
    )


def measure(harness: Harness) -> Round:
    measured = baselines.raw_many(harness, _AT_ONCE)
    chunks = range(0, harness.count(_PARKED), _CHUNK)
    with harness.node("runs") as node:
        empty = node.resident_bytes()
        parking = [_park(harness, first, _CHUNK, f"kept{first}") for first in chunks]
    with harness.node("runs") as node:
        for first in chunks:
            harness.load("looked_at", _CHUNK, window=16, first=first)
        grown = node.resident_bytes() - empty
        _park(harness, 2_000, _WOKEN, "same")
        same = harness.load("woken", _WOKEN, first=2_000)
        _park(harness, 3_000, _DECIDED, "rate")
        rate = harness.load("decided", _DECIDED, window=_AT_ONCE, first=3_000)
        _park(harness, 4_000, _WOKEN, "another")
    with harness.node("runs"):
        another = harness.load("woken", _WOKEN, first=4_000)
    per_run = max(1.0, grown / (harness.count(_CHUNK) * len(chunks)))
    return {
        **measured,
        _SAME: same.p50_us / 1e3,
        _ANOTHER: another.p50_us / 1e3,
        _RATE: rate.rate,
        _PARKING: min(parking),
        _MEMORY: _PARKED * per_run / 1e6,
    }


def _park(harness: Harness, first: int, count: int, cell: str) -> float:
    """How many per second."""
    return harness.load("parked", count, window=16, first=first, cell=cell).rate
