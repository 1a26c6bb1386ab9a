"""The nodes of a realm: when they started and stopped, and which partitions they hold.

Starts and stops come from facts. Whether a node is alive now is known from its claims only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

import msgspec

from rookery.actors.kernel import node_of_holder
from rookery.bus.ports import Claim, StoredMessage
from rookery.schemas.codec import FactCodec
from rookery.schemas.facts.node import NODE_FACTS, NodeFact, Started, Stopped
from rookery.schemas.run import Language

__all__ = ["NodeView", "nodes_of"]

_CODEC: FactCodec[NodeFact] = FactCodec(NODE_FACTS)


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node as a row of a list."""

    node: str
    state: str
    """``alive``, ``stopped``, or ``gone`` if it left without a fact."""
    partitions: int
    """How many partitions it holds."""
    version: str
    host: str
    pid: int
    durability: str
    builds: dict[Language, str] = {}
    """Digests of the guests that new sessions start with on it."""
    started_at_ms: int
    stopped_at_ms: int | None = None
    reason: str = ""


def nodes_of(
    messages: Iterable[StoredMessage], alive: Collection[str], partitions: Iterable[Claim]
) -> list[NodeView]:
    """All nodes of the journal, those with a live claim (``alive``) first."""
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
    absent = "stopped" if ended is not None else "gone"
    return NodeView(
        node=begun.node,
        state="alive" if is_alive else absent,
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
