"""Surfaces: calls by the Model Context Protocol beside the SDK alone, and a realm with many tools.

The node is as ``rookery up`` starts it, with its sandbox. Servers are called over stdio, one call
at a time; those with many tools are one process by HTTP. It needs the extra ``rookery[mcp]``.
"""

from __future__ import annotations

from rookery.ops.bench.harness import baselines
from rookery.ops.bench.harness.baselines import JS_PUBLISH
from rookery.ops.bench.harness.harness import Harness
from rookery.ops.bench.harness.result_rows import Figure, Round, Sync

__all__ = ["lines", "measure"]

_CALLS, _SURFACES = 150, 50

_ALONE = "call of a tool by stdio, the SDK alone, p50"
_CALLED = "durable call of the same tool by a program, p50"
_BEYOND = "the same, less two appends, p50"
_DIRECT = "run with one durable call, by the client, p50"
_SERVED = "the same by `rookery mcp`, p50"
_ALONE_CPU = "processor time of a call by the SDK's client"
_OWN_CPU = "of the node, for an awaited durable call of its own function"
_CALLED_CPU = "of the node, for the call by stdio"
_ADDED_CPU = "the call by stdio, less that of its own function"
_WITHOUT = "run 1+1 in a realm without surfaces, p50"
_OFFERED = "the same with 50 surfaces of 40 tools, p50"
_ADDED = "50 surfaces of 40 tools added in one change"
_TAKEN_UP = "50 surfaces taken up at one boundary, p50"


def lines(sync: Sync) -> tuple[Figure, ...]:
    del sync
    return (
        Figure(JS_PUBLISH, "us"),
        Figure(_ALONE, "us", JS_PUBLISH),
        Figure(_CALLED, "us", _ALONE),
        Figure(_BEYOND, "us", _ALONE, at_most=1.3),
        Figure(_ALONE_CPU, "us"),
        Figure(_OWN_CPU, "us", _ALONE_CPU),
        Figure(_CALLED_CPU, "us", _OWN_CPU),
        Figure(_ADDED_CPU, "us", _ALONE_CPU),
        Figure(_DIRECT, "us", JS_PUBLISH),
        Figure(_SERVED, "us", _DIRECT),
        Figure(_WITHOUT, "us", JS_PUBLISH),
        Figure(_OFFERED, "us", _WITHOUT, at_most=1.05),
        Figure(_ADDED, "us"),
        Figure(_TAKEN_UP, "us", JS_PUBLISH),
    )


def measure(harness: Harness) -> Round:
    measured = dict(baselines.js_publish(harness))
    with harness.node("runs") as node:
        calls = harness.load("mcp_calls", _CALLS, cell="calls", node_pid=node.pid).figures
        many = harness.load("many_surfaces", entities=_SURFACES, first=1_000, cell="many").figures
    return {
        **measured,
        _ALONE: calls["alone"],
        _CALLED: calls["called"],
        _BEYOND: max(1.0, calls["called"] - 2 * measured[JS_PUBLISH]),
        _ALONE_CPU: calls["alone_cpu"],
        _OWN_CPU: calls["own_cpu"],
        _CALLED_CPU: calls["called_cpu"],
        _ADDED_CPU: max(1.0, calls["called_cpu"] - calls["own_cpu"]),
        _DIRECT: calls["direct"],
        _SERVED: calls["served"],
        _WITHOUT: many["without"],
        _OFFERED: many["offered"],
        _ADDED: many["added"],
        _TAKEN_UP: max(1.0, many["taken_up"]),
    }
