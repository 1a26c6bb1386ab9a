"""Peers: a program's request to its result within a realm and over a link, the check of an
envelope, many peers that wait, and runs that use no peer.

The two linked sites have a server and a node each. The responder's program adds one to a number.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from rookery.bus.mesh_links import MeshLink, make_links
from rookery.ops.bench.harness import baselines
from rookery.ops.bench.harness.baselines import JS_PUBLISH
from rookery.ops.bench.harness.harness import Harness, NodeProcess
from rookery.ops.bench.harness.result_rows import Figure, Round, Sync

__all__ = ["lines", "measure"]

_EXCHANGES, _CHECKS, _WAITING, _RUNS = 60, 300, 3_000, 300
_TOLD = 1_000
"""So many of the peers that wait are meant by the figure; the server compresses full blocks."""
_SITES = ("west", "east")
_PLAIN_REALM = "plain"

_WITHIN = "request of a program to its result, with a responder, p50"
_OVER_LINK = "the same over a link between two servers, p50"
_APPENDS = "appends in sequence of it"
_LIBRARY = "CPU of the library's import and verify"
_CHECK = "CPU of the check of an envelope"
_NEW = "the same for the first envelope of a sender"
_MEMORY = "1,000 peers with one open request each, in their node"
_DISK = "the same on disk, each"
_SUBSCRIPTIONS = "subscriptions of the node"
_SUBSCRIPTIONS_THEN = "the same while these wait"
_RUN = "a whole run 1 + 1 on a node without peers, p50"
_RUN_BESIDE = "the same on a node with them, p50"


def lines(sync: Sync) -> tuple[Figure, ...]:
    del sync
    return (
        Figure(JS_PUBLISH, "us"),
        Figure(_WITHIN, "us", JS_PUBLISH, at_most=16),
        Figure(_OVER_LINK, "us", _WITHIN, at_most=1.3),
        Figure(_APPENDS, "", at_most=9),
        Figure(_LIBRARY, "us"),
        Figure(_CHECK, "us", _LIBRARY, at_most=1.3),
        Figure(_NEW, "us", _LIBRARY),
        Figure(_MEMORY, "MB", at_most=25),
        Figure(_DISK, "kB", at_most=5),
        Figure(_SUBSCRIPTIONS, ""),
        Figure(_SUBSCRIPTIONS_THEN, "", _SUBSCRIPTIONS, at_most=1),
        Figure(_RUN, "us"),
        Figure(_RUN_BESIDE, "us", _RUN, at_most=1.02),
    )


def measure(harness: Harness) -> Round:
    """The baseline of exchanges is that of the same server."""
    checks = harness.load("check_envelopes", _CHECKS).figures
    with _sites(harness) as (hub, leaf, node):
        publish = baselines.js_publish(hub)
        asked = hub.load("exchanges", _EXCHANGES, other_url=leaf.client_url).figures
        waiting = _waiting(hub, node)
        with harness.node("peers", realm=_PLAIN_REALM):
            plain = harness.client_url_of(_PLAIN_REALM)
            runs = hub.load("runs_beside", _RUNS, entities=1, other_url=plain).figures
    return {
        JS_PUBLISH: publish[JS_PUBLISH],
        _WITHIN: asked["within"],
        _OVER_LINK: asked["over"],
        _APPENDS: asked["appends"],
        _LIBRARY: checks["library"],
        _CHECK: checks["check"],
        _NEW: checks["new"],
        **waiting,
        _RUN: runs["without"],
        _RUN_BESIDE: runs["with"],
    }


@contextmanager
def _sites(harness: Harness) -> Iterator[tuple[Harness, Harness, NodeProcess]]:
    """A hub and a leaf, with a server and a node each; the third is the hub's node."""
    first, second = _links()
    with (
        Harness(harness.sync, harness.share, link=first, start=harness.start) as hub,
        Harness(harness.sync, harness.share, link=second, start=harness.start) as leaf,
        hub.node("peers") as node,
        leaf.node("peers"),
    ):
        yield hub, leaf, node


def _links() -> tuple[MeshLink, MeshLink]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    hub, leaf = _SITES
    first, second = make_links(hub, [leaf], f"nats-leaf://{address}", address, {leaf: "bench"})
    return first, second


def _waiting(harness: Harness, node: NodeProcess) -> Round:
    """Each of many peers asks the next one, and none responds."""
    before_bytes, disk_bytes = node.resident_bytes(), harness.stored_bytes()
    found = harness.load("open_requests", _WAITING).figures
    grown = node.resident_bytes() - before_bytes
    count = harness.count(_WAITING)
    return {
        _MEMORY: _TOLD / count * grown / 1e6,
        _DISK: (harness.stored_bytes() - disk_bytes) / count / 1e3,
        _SUBSCRIPTIONS: found["before"],
        _SUBSCRIPTIONS_THEN: found["after"],
    }
