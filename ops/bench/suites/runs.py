"""Whole runs: a program is requested, recorded step by step, executed and answered.

The node is as ``rookery up`` starts it, with its sandbox and one tool that does nothing; the load
uses the public client. The cost of a call is the difference of two programs, one of which makes it.
"""

from __future__ import annotations

from rookery.ops.bench.harness import baselines
from rookery.ops.bench.harness.baselines import JS_PUBLISH, raw_rate
from rookery.ops.bench.harness.harness import Harness
from rookery.ops.bench.harness.result_rows import Figure, Round, Sync

__all__ = ["lines", "measure"]

_WINDOWS = (1, 16, 64)
_COUNTS = {1: 300, 16: 800, 64: 1_600}
_RUNS, _CALLS, _LEFT = 300, 150, 50

_RUN = "a whole run 1 + 1, warm session, p50"
_RUN_MS, _RUN_P99 = f"{_RUN}, in ms", "a whole run 1 + 1, warm session, p99"
_CALL = "durable tool call, p50"
_TAKEN_OVER = "first run in a session another node had, p50"
_RUN_MESSAGES, _CALL_MESSAGES = "messages a run", "messages more a call"


def lines(sync: Sync) -> tuple[Figure, ...]:
    del sync
    return (
        Figure(JS_PUBLISH, "us"),
        Figure(_RUN, "us", JS_PUBLISH, at_most=10),
        Figure(_RUN_MS, "ms", at_most=20),
        Figure(_RUN_P99, "us"),
        Figure(_CALL, "us", JS_PUBLISH, at_most=4),
        Figure(_TAKEN_OVER, "us"),
        Figure(_RUN_MESSAGES, "", at_most=4),
        Figure(_CALL_MESSAGES, "", at_most=3),
        *(
            line
            for window in _WINDOWS
            for line in (
                Figure(raw_rate(window), "/s"),
                Figure(_rate(window), "/s", raw_rate(window)),
            )
        ),
    )


def measure(harness: Harness) -> Round:
    measured = {**baselines.raw_many(harness, *_WINDOWS), **baselines.js_publish(harness)}
    with harness.node("runs"):
        harness.load("programs", _LEFT, entities=_LEFT, window=16, cell="warm")
        one = harness.load("counted_programs", _RUNS, entities=_LEFT, cell="one")
        call = harness.load("calls", _CALLS, entities=_LEFT, cell="call")
        for window, count in _COUNTS.items():
            harness.load("programs", window, entities=window, window=window, cell=f"warm{window}")
            done = harness.load(
                "programs", count, entities=window, window=window, cell=f"many{window}"
            )
            measured[_rate(window)] = done.rate
    with harness.node("runs"):
        left = harness.load("programs", _LEFT, entities=_LEFT, cell="left")
    return {
        **measured,
        _RUN: one.p50_us,
        _RUN_MS: one.p50_us / 1e3,
        _RUN_P99: one.p99_us,
        _CALL: call.p50_us,
        _TAKEN_OVER: left.p50_us,
        _RUN_MESSAGES: one.left / one.done,
        _CALL_MESSAGES: call.left,
    }


def _rate(window: int) -> str:
    return f"runs, {window} in flight"
