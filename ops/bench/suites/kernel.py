"""Commands by request-reply: decided, committed and answered by one node.

The journal is audited after every cell, outside of the measured time.
"""

from __future__ import annotations

from rookery.ops.bench.harness import baselines
from rookery.ops.bench.harness.baselines import JS_PUBLISH, raw_rate, thin_rate
from rookery.ops.bench.harness.harness import Harness
from rookery.ops.bench.harness.journal_audit import JournalAudit
from rookery.ops.bench.harness.result_rows import Figure, Round, Sync

__all__ = ["lines", "measure"]

_ENTITIES = 1_000
_COUNTS = {
    "always": {1: 1_000, 64: 6_000, 1_024: 24_000},
    "default": {1: 1_000, 64: 20_000, 1_024: 30_000},
}
_P50 = "one command, request to durable answer, p50"
_P99 = "one command, request to durable answer, p99"


def lines(sync: Sync) -> tuple[Figure, ...]:
    always = (
        Figure(JS_PUBLISH, "us"),
        Figure(raw_rate(64), "/s"),
        Figure(raw_rate(1_024), "/s"),
        Figure(_P50, "us", JS_PUBLISH, at_most=2.0),
        Figure(_P99, "us"),
        Figure(_rate(1), "/s"),
        Figure(_rate(64), "/s", raw_rate(64), at_least=1.5),
        Figure(_rate(1_024), "/s", raw_rate(1_024), at_least=3.0),
    )
    default = (
        Figure(JS_PUBLISH, "us"),
        Figure(thin_rate(64), "/s"),
        Figure(thin_rate(1_024), "/s"),
        Figure(_P50, "us", JS_PUBLISH),
        Figure(_P99, "us"),
        Figure(_rate(1), "/s"),
        Figure(_rate(64), "/s", thin_rate(64)),
        Figure(_rate(1_024), "/s", thin_rate(1_024), at_least=0.25),
    )
    return (
        *(always if sync == "always" else default),
        Figure(_cpu(64), "us"),
        Figure(_cpu(1_024), "us"),
    )


def measure(harness: Harness) -> Round:
    many = baselines.raw_many if harness.sync == "always" else baselines.thin_many
    measured = {**baselines.js_publish(harness), **many(harness, *baselines.WINDOWS)}
    books = JournalAudit(harness.url)
    with harness.node() as node:
        harness.load("requests", _ENTITIES, window=64, entities=_ENTITIES, cell="warm")
        books.check("warm", harness.count(_ENTITIES))
        for window, count in _COUNTS[harness.sync].items():
            cell, used_s = f"w{window}", node.cpu_s()
            outcome = harness.load("requests", count, window=window, entities=_ENTITIES, cell=cell)
            measured[_rate(window)] = outcome.rate
            measured[_cpu(window)] = 1e6 * (node.cpu_s() - used_s) / outcome.done
            if window == 1:
                measured |= {_P50: outcome.p50_us, _P99: outcome.p99_us}
            books.check(cell, outcome.done)
    return measured


def _rate(window: int) -> str:
    return f"commands, {window:,} in flight"


def _cpu(window: int) -> str:
    return f"processor time of the node a command, {window:,} in flight"
