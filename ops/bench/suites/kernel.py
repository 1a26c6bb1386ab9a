"""Commands by request-reply: decided, journaled and answered, by one node, durably.

The journal is audited after every cell, outside the time that counts.
"""

from __future__ import annotations

from rookery.ops.bench.harness import baselines
from rookery.ops.bench.harness.baselines import JS_PUBLISH, raw_rate, thin_rate
from rookery.ops.bench.harness.harness import Lab
from rookery.ops.bench.harness.journal_audit import Books
from rookery.ops.bench.harness.result_rows import Line, Round, Sync

__all__ = ["lines", "measure"]

_ENTITIES = 1_000
_COUNTS = {
    "always": {1: 1_000, 64: 6_000, 1_024: 24_000},
    "default": {1: 1_000, 64: 20_000, 1_024: 30_000},
}
_P50 = "one command, request to durable answer, p50"
_P99 = "one command, request to durable answer, p99"


def lines(sync: Sync) -> tuple[Line, ...]:
    always = (
        Line(JS_PUBLISH, "us"),
        Line(raw_rate(64), "/s"),
        Line(raw_rate(1_024), "/s"),
        Line(_P50, "us", JS_PUBLISH, at_most=2.0),
        Line(_P99, "us"),
        Line(_rate(1), "/s"),
        Line(_rate(64), "/s", raw_rate(64), at_least=1.5),
        Line(_rate(1_024), "/s", raw_rate(1_024), at_least=3.0),
    )
    default = (
        Line(JS_PUBLISH, "us"),
        Line(thin_rate(64), "/s"),
        Line(thin_rate(1_024), "/s"),
        Line(_P50, "us", JS_PUBLISH),
        Line(_P99, "us"),
        Line(_rate(1), "/s"),
        Line(_rate(64), "/s", thin_rate(64)),
        Line(_rate(1_024), "/s", thin_rate(1_024), at_least=0.25),
    )
    return (
        *(always if sync == "always" else default),
        Line(_cpu(64), "us"),
        Line(_cpu(1_024), "us"),
    )


def measure(lab: Lab) -> Round:
    many = baselines.raw_many if lab.sync == "always" else baselines.thin_many
    measured = {**baselines.js_publish(lab), **many(lab, *baselines.WINDOWS)}
    books = Books(lab.url)
    with lab.node() as node:
        lab.load("requests", _ENTITIES, window=64, entities=_ENTITIES, cell="warm")
        books.check("warm", lab.count(_ENTITIES))
        for window, count in _COUNTS[lab.sync].items():
            cell, used_s = f"w{window}", node.cpu_s()
            outcome = lab.load("requests", count, window=window, entities=_ENTITIES, cell=cell)
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
