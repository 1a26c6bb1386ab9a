"""Commands through the durable inbox: stored, pulled, decided, committed, answered, acked."""

from __future__ import annotations

from rookery.ops.bench.harness import baselines
from rookery.ops.bench.harness.baselines import RAW_ONE, WINDOWS, raw_rate
from rookery.ops.bench.harness.harness import Harness
from rookery.ops.bench.harness.journal_audit import JournalAudit
from rookery.ops.bench.harness.result_rows import Figure, Round, Sync

__all__ = ["lines", "measure"]

_ENTITIES = 1_000
_COUNTS = {
    "always": {1: 500, 64: 3_000, 1_024: 6_000},
    "default": {1: 1_000, 64: 10_000, 1_024: 20_000},
}
_P50 = "one command through the inbox, to its durable answer, p50"


def lines(sync: Sync) -> tuple[Figure, ...]:
    promised = sync == "always"
    return (
        Figure(RAW_ONE, "us"),
        *(Figure(raw_rate(window), "/s") for window in WINDOWS),
        Figure(_P50, "us", RAW_ONE, at_most=4.0 if promised else None),
        *(
            Figure(_rate(window), "/s", raw_rate(window), at_least=0.5 if promised else None)
            for window in WINDOWS
        ),
    )


def measure(harness: Harness) -> Round:
    measured = {**baselines.raw_one(harness), **baselines.raw_many(harness, *WINDOWS)}
    books = JournalAudit(harness.url)
    with harness.node():
        harness.load("requests", _ENTITIES, window=64, entities=_ENTITIES, cell="warm")
        books.check("warm", harness.count(_ENTITIES))
        for window, count in _COUNTS[harness.sync].items():
            cell = f"w{window}"
            outcome = harness.load("inbox", count, window=window, entities=_ENTITIES, cell=cell)
            if window == 1:
                measured[_P50] = outcome.p50_us
            else:
                measured[_rate(window)] = outcome.rate
            books.check(cell, outcome.done)
    return measured


def _rate(window: int) -> str:
    return f"commands through the inbox, {window:,} in flight"
