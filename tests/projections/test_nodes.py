"""The list of nodes, folded from their facts and claims."""

from __future__ import annotations

from rookery.actors.projections.nodes import nodes_of
from rookery.bus.ports import Claim
from rookery.schemas.facts.node import Started, Stopped
from tests.projections.fact_builders import FactHistory


def started(history: FactHistory, name: str) -> None:
    history.say(name, Started(node=name, version="1", host="h", pid=7, durability="always"))


def test_a_node_is_alive_by_its_claim_stopped_by_its_word_and_else_gone():
    history = FactHistory()
    for name in ("killed", "left", "here"):
        started(history, name)
    history.say("left", Stopped(node="left", reason="SIGTERM"))
    claims = [Claim("partition.1", "here", 1), Claim("partition.2", "here", 2)]
    claims.append(Claim("partition.3", "killed", 3))
    nodes = nodes_of(history.messages, {"here"}, claims)
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
    node, _ = sorted(nodes_of(history.messages, {"node.2", "other"}, claims), key=lambda n: n.node)
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
    (node,) = nodes_of(history.messages, {"node.1"}, [])
    assert (node.state, node.stopped_at_ms) == ("alive", None)
