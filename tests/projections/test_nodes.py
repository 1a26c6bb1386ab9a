"""The list of nodes, folded from their facts and claims."""

from __future__ import annotations

from msgspec import UNSET

from rookery.actors.keys.ed25519 import SigningKey, key_id_of
from rookery.actors.projections.reports.nodes import nodes_of
from rookery.bus.ports import Claim
from rookery.ops.keys import TrustRoots
from rookery.ops.keys.node_keys import root_voucher
from rookery.schemas.facts.node import Started, Stopped
from tests.projections.fact_builders import FactHistory

ROOTS, KEY = TrustRoots("r"), SigningKey(b"k" * 32).public_key


def started(history: FactHistory, name: str) -> None:
    history.say(name, Started(node=name, version="1", host="h", pid=7, durability="always"))


def test_a_node_is_alive_by_its_claim_stopped_by_its_word_and_else_gone():
    history = FactHistory()
    for name in ("killed", "left", "here"):
        started(history, name)
    history.say("left", Stopped(node="left", reason="SIGTERM"))
    claims = [Claim("partition.1", "here", 1), Claim("partition.2", "here", 2)]
    claims.append(Claim("partition.3", "killed", 3))
    nodes = nodes_of(history.messages, {"here"}, claims, ROOTS.voucher_of)
    assert [(node.node, node.state, node.partitions) for node in nodes] == [
        ("here", "alive", 2),
        ("left", "stopped", 0),
        ("killed", "gone", 0),
    ]
    assert (nodes[1].stopped_at_ms, nodes[1].reason) == (history.now_ms, "SIGTERM")


def test_the_processes_of_a_node_are_one_row():
    history = FactHistory()
    for name in ("node.1", "node.2", "other"):
        started(history, name)
    history.say("node.1", Stopped(node="node.1", reason="SIGTERM"))
    claims = [Claim("partition.1", "node.2.abc", 1), Claim("partition.2", "other.def", 2)]
    nodes = nodes_of(history.messages, {"node.2", "other"}, claims, ROOTS.voucher_of)
    node, _ = sorted(nodes, key=lambda one: one.node)
    assert (node.node, node.state, node.partitions, node.reason) == ("node", "alive", 1, "")
    assert [(one.process, one.state, one.partitions) for one in node.processes] == [
        ("node.1", "stopped", 0),
        ("node.2", "alive", 1),
    ]


def test_a_process_that_started_again_is_not_stopped():
    history = FactHistory()
    started(history, "node.1")
    history.say("node.1", Stopped(node="node.1", reason="SIGTERM"))
    started(history, "node.1")
    (node,) = nodes_of(history.messages, {"node.1"}, [], ROOTS.voucher_of)
    assert (node.state, node.stopped_at_ms) == ("alive", None)


def test_a_node_shows_its_key_and_what_vouches_for_it():
    root, history = SigningKey(b"r" * 32), FactHistory()
    for name, voucher in (("vouched", root_voucher(root, "r", KEY)), ("seen", UNSET)):
        fields = {"version": "1", "host": "h", "pid": 7, "durability": "always"}
        history.say(name, Started(node=name, public_key=KEY, voucher=voucher, **fields))
    nodes = nodes_of(history.messages, (), (), TrustRoots("r", root.public_key).voucher_of)
    shown = {one.node: (one.key_id, one.vouched_by) for one in nodes}
    assert shown == {"vouched": (key_id_of(KEY), "the root key"), "seen": (key_id_of(KEY), "")}
    assert {one.vouched_by for one in nodes_of(history.messages, (), (), ROOTS.voucher_of)} == {""}
