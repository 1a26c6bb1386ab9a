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

_CALLS, _SURFACES = 100, 50
_PLAIN_REALM = "plain"

_ALONE = "call of a tool by stdio, the SDK alone, p50"
_CALLED = "durable call of the same tool by a program, p50"
_BEYOND = "the same, less two appends, p50"
_OWN = "durable call of an awaited function of the node, p50"
_ADDED = "the call by stdio, less that of the function, p50"
_DIRECT = "run with one durable call, by the client, p50"
_SERVED = "the same by `rookery mcp`, p50"
_ALONE_CPU = "processor time of a call by the SDK's client"
_OWN_CPU = "of the node, for the call of its function"
_CALLED_CPU = "of the node, for the call by stdio"
_ADDED_CPU = "of the node, more than a function that answers later"
_WITHOUT = "run 1+1 in a realm without surfaces, p50"
_OFFERED = "the same with 50 surfaces of 40 tools, p50"
_WITHOUT_CPU = "processor time of the node for run 1+1"
_OFFERED_CPU = "processor time of a node with 50 surfaces for it"
_CHANGE = "50 surfaces of 40 tools added in one change"
_TAKEN_UP = "50 surfaces taken up at one boundary, p50"


def lines(sync: Sync) -> tuple[Figure, ...]:
    del sync
    return (
        Figure(JS_PUBLISH, "us"),
        Figure(_ALONE, "us", JS_PUBLISH),
        Figure(_CALLED, "us", _ALONE),
        Figure(_BEYOND, "us", _ALONE, at_most=1.3),
        Figure(_OWN, "us", _ALONE),
        Figure(_ADDED, "us", _ALONE, at_most=1.3),
        Figure(_ALONE_CPU, "us"),
        Figure(_OWN_CPU, "us", _ALONE_CPU),
        Figure(_CALLED_CPU, "us", _OWN_CPU),
        Figure(_ADDED_CPU, "us", _ALONE_CPU, at_most=1.3),
        Figure(_DIRECT, "us", JS_PUBLISH),
        Figure(_SERVED, "us", _DIRECT),
        Figure(_WITHOUT, "us", JS_PUBLISH),
        Figure(_OFFERED, "us", _WITHOUT, at_most=1.05),
        Figure(_WITHOUT_CPU, "us"),
        Figure(_OFFERED_CPU, "us", _WITHOUT_CPU, at_most=1.05),
        Figure(_CHANGE, "us"),
        Figure(_TAKEN_UP, "us", JS_PUBLISH),
    )


def measure(harness: Harness) -> Round:
    measured = dict(baselines.js_publish(harness))
    with harness.node("runs") as node:
        calls = harness.load("mcp_calls", _CALLS, cell="calls", node_pid=node.pid).figures
        with harness.node("runs", realm=_PLAIN_REALM) as plain:
            many = harness.load(
                "many_surfaces",
                entities=_SURFACES,
                first=1_000,
                cell="many",
                node_pid=node.pid,
                other_url=harness.client_url_of(_PLAIN_REALM),
                other_pid=plain.pid,
            ).figures
    return {
        **measured,
        _ALONE: calls["alone"],
        _CALLED: calls["called"],
        _BEYOND: max(1.0, calls["called"] - 2 * measured[JS_PUBLISH]),
        _OWN: calls["own"],
        _ADDED: max(1.0, calls["added"]),
        _ALONE_CPU: calls["alone_cpu"],
        _OWN_CPU: calls["own_cpu"],
        _CALLED_CPU: calls["called_cpu"],
        _ADDED_CPU: max(1.0, calls["added_cpu"]),
        _DIRECT: calls["direct"],
        _SERVED: calls["served"],
        _WITHOUT: many["without"],
        _OFFERED: many["offered"],
        _WITHOUT_CPU: many["without_cpu"],
        _OFFERED_CPU: many["offered_cpu"],
        _CHANGE: many["added"],
        _TAKEN_UP: max(1.0, many["taken_up"]),
    }
