"""The nodes of a realm: who said that it came and went, and who holds what just now.

Facts say what a node said of itself; that it is still there, only its claims can say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

import msgspec

from rookery.actors.kernel.partition_ownership import node_of_holder
from rookery.bus.ports import Claim, StoredMessage
from rookery.schemas.codec import FactCodec
from rookery.schemas.facts.node import NODE_FACTS, NodeFact, Started, Stopped
from rookery.schemas.run import Language

__all__ = ["NodeView", "nodes_of"]

_CODEC: FactCodec[NodeFact] = FactCodec(NODE_FACTS)


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node as it stands."""

    node: str
    state: str
    """``alive``, ``stopped``, or ``gone``: it left without a word."""
    partitions: int
    """How many it serves, or holds without having said that it does."""
    version: str
    host: str
    pid: int
    durability: str
    builds: dict[Language, str] = {}
    """Digests of the guests that new sessions begin with there."""
    started_at_ms: int
    stopped_at_ms: int | None = None
    reason: str = ""


def nodes_of(
    messages: Iterable[StoredMessage], alive: Collection[str], partitions: Iterable[Claim]
) -> list[NodeView]:
    """All nodes that ever were; those whose claims say that they are ``alive`` first."""
    held = Counter(node_of_holder(claim.holder) for claim in partitions)
    begun: dict[str, Started] = {}
    ended: dict[str, Stopped] = {}
    for stored in messages:
        for fact in _CODEC.decode(stored.body):
            match fact:
                case Started():
                    begun[fact.node] = fact
                case Stopped():
                    ended[fact.node] = fact
    views = [
        _node_view(fact, ended.get(name), is_alive=name in alive, partitions=held[name])
        for name, fact in begun.items()
    ]
    return sorted(views, key=lambda view: (view.state != "alive", -view.started_at_ms))


def _node_view(
    begun: Started, ended: Stopped | None, *, is_alive: bool, partitions: int
) -> NodeView:
    silent = "stopped" if ended is not None else "gone"
    return NodeView(
        node=begun.node,
        state="alive" if is_alive else silent,
        partitions=partitions if is_alive else 0,
        version=begun.version,
        host=begun.host,
        pid=begun.pid,
        durability=begun.durability,
        builds=begun.builds,
        started_at_ms=begun.at_ms,
        stopped_at_ms=None if ended is None else ended.at_ms,
        reason="" if ended is None else ended.reason,
    )
