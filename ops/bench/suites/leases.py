"""Leases: calls with a credential, the cost of many leases, and the time of a refresh.

The node is as ``rookery up`` starts it, with its sandbox, two bindings and two tools that differ in
their credential alone. An authorization server in a process of its own issues tokens for seconds,
and times itself. Held leases are in the memory of their owner and have a timer each; a node that
follows leases has their states, to let calls pass.
"""

from __future__ import annotations

from threading import Event

from rookery.ops.bench.harness import baselines
from rookery.ops.bench.harness.baselines import JS_PUBLISH
from rookery.ops.bench.harness.harness import Harness, NodeProcess
from rookery.ops.bench.harness.result_rows import Figure, Round, Sync

__all__ = ["lines", "measure"]

_CALLS, _HELD, _CHUNKS, _BRIEF, _REFRESHES = 300, 10_000, 4, 20, 100
_AT_ONCE = 64
_IDLE_MS, _IDLE_S_MIN = 5_000, 0.2

_PLAIN = "durable call without a credential, p50"
_WITH = "the same call with a fresh credential, p50"
_BEGUN = f"first credentials of leases, {_AT_ONCE} in flight"
_HELD_MB = "10,000 leases held, in their node"
_FOLLOWED_MB = "10,000 leases followed, in another node"
_IDLE, _IDLE_HELD = "processor time of an idle node", "the same with 10,000 leases"
_TIMER = "timer due to the begin of a refresh, p50"
_REFRESH = "timer due to the new credential, less the provider's own time, p50"


def lines(sync: Sync) -> tuple[Figure, ...]:
    del sync
    return (
        Figure(JS_PUBLISH, "us"),
        Figure(_PLAIN, "us", JS_PUBLISH),
        Figure(_WITH, "us", _PLAIN, at_most=1.05),
        Figure(_BEGUN, "/s"),
        Figure(_HELD_MB, "MB"),
        Figure(_FOLLOWED_MB, "MB"),
        Figure(_IDLE, "ms/s"),
        Figure(_IDLE_HELD, "ms/s", _IDLE),
        Figure(_TIMER, "us", JS_PUBLISH),
        Figure(_REFRESH, "us", JS_PUBLISH),
    )


def measure(harness: Harness) -> Round:
    measured = dict(baselines.js_publish(harness))
    with harness.token_server() as tokens, harness.node("leases", token_url=tokens.url) as node:
        calls = harness.load("lease_calls", _CALLS, entities=1, cell="calls")
        measured |= _hold(harness, node)
        refreshes = harness.load("refresh_leases", _REFRESHES, entities=_BRIEF)
    return {
        **measured,
        _WITH: calls.p50_us,
        _PLAIN: calls.beside_p50_us,
        _TIMER: refreshes.beside_p50_us,
        _REFRESH: refreshes.p50_us - tokens.own_us,
    }


def _hold(harness: Harness, node: NodeProcess) -> Round:
    """Give the node many leases."""
    idle, empty = _idle_ms(harness, node), node.resident_bytes()
    chunk = harness.count(_HELD // _CHUNKS)
    begun = [
        harness.load("begin_leases", _HELD // _CHUNKS, window=_AT_ONCE, first=number * chunk)
        for number in range(_CHUNKS)
    ]
    grown = node.resident_bytes() - empty
    followed = int(harness.output_of("followed", _HELD))
    return {
        _BEGUN: min(load.rate for load in begun),
        _HELD_MB: _HELD / (chunk * _CHUNKS) * grown / 1e6,
        _FOLLOWED_MB: _HELD / harness.count(_HELD) * followed / 1e6,
        _IDLE: idle,
        _IDLE_HELD: _idle_ms(harness, node),
    }


def _idle_ms(harness: Harness, node: NodeProcess) -> float:
    """The processor time of a second in which nothing is requested."""
    seconds = max(_IDLE_S_MIN, harness.count(_IDLE_MS) / 1e3)
    before_s = node.cpu_s()
    Event().wait(seconds)
    return 1e3 * (node.cpu_s() - before_s) / seconds
