"""Hooks: a durable call with a hook of each kind at it, relative to one without.

The node is as ``rookery up`` starts it, with its sandbox. The hook of the kind ``nats`` is served
by the process of the load, whose bare request goes over the same connection.
"""

from __future__ import annotations

from rookery.ops.bench.harness import baselines
from rookery.ops.bench.harness.baselines import JS_PUBLISH
from rookery.ops.bench.harness.harness import Harness
from rookery.ops.bench.harness.result_rows import Figure, Round, Sync

__all__ = ["lines", "measure"]

_CALLS = 20

_WITHOUT = "durable call without hooks, p50"
_OBSERVED = "the same with an observer of its result, p50"
_RULE = "the same with a rule, p50"
_PYTHON = "the same with a function of the node, p50"
_NATS = "what a hook served by NATS adds, p50"
_BARE = "bare NATS request, p50"
_CHANGE = "what an accepted change adds to a function, p50"


def lines(sync: Sync) -> tuple[Figure, ...]:
    del sync
    return (
        Figure(JS_PUBLISH, "us"),
        Figure(_WITHOUT, "us", JS_PUBLISH),
        Figure(_OBSERVED, "us", _WITHOUT, at_most=1.02),
        Figure(_RULE, "us", _WITHOUT, at_most=1.10),
        Figure(_PYTHON, "us", _WITHOUT, at_most=1.10),
        Figure(_BARE, "us", JS_PUBLISH),
        Figure(_NATS, "us", _BARE, at_most=1.5),
        Figure(_CHANGE, "us", JS_PUBLISH, at_most=0.2),
    )


def measure(harness: Harness) -> Round:
    measured = dict(baselines.js_publish(harness))
    with harness.node("hooks"):
        found = harness.load("hook_calls", _CALLS, cell="hooks").figures
    return {
        **measured,
        _WITHOUT: found["without"],
        _OBSERVED: found["observer"],
        _RULE: found["rule"],
        _PYTHON: found["python"],
        _BARE: found["bare"],
        _NATS: max(1.0, found["nats"] - found["without"]),
        _CHANGE: max(1.0, found["change"] - found["python"]),
    }
