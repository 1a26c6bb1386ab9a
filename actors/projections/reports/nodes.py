"""The nodes of a realm and their processes: starts, stops, and the partitions they hold.

Starts and stops come from facts. Whether a node is alive now is known from its claims only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from rookery.actors.keys.ed25519 import key_id_of
from rookery.bus.ports import Claim, StoredMessage
from rookery.schemas.codec import FactCodec
from rookery.schemas.errors import CodedError
from rookery.schemas.facts.node import NODE_FACTS, NodeFact, Started, Stopped
from rookery.schemas.ids import process_of_holder
from rookery.schemas.run import Language

__all__ = ["NodeView", "ProcessView", "nodes_of"]

_CODEC: FactCodec[NodeFact] = FactCodec(NODE_FACTS)


class ProcessView(msgspec.Struct, frozen=True, kw_only=True):
    """A process of a node."""

    process: str
    """Its name: the node's, with a number if the node has several processes."""
    state: str
    """``alive``, ``stopped``, or ``gone`` if it left without a fact."""
    partitions: int
    """How many partitions it holds."""
    pid: int
    started_at_ms: int
    stopped_at_ms: int | None = None
    reason: str = ""


class NodeView(msgspec.Struct, frozen=True, kw_only=True):
    """A node as a row of a list: its latest process, and sums over all of them."""

    node: str
    state: str
    """``alive`` while one of its processes is."""
    partitions: int
    version: str
    host: str
    pid: int
    durability: str
    builds: dict[Language, str] = {}
    """Digests of the guests that new sessions start with on it."""
    functions: str = ""
    """Digest of the tools of its own process; empty: it has none."""
    key_id: str = ""
    """Of the key that signs its checkpoints; empty: it signs none."""
    vouched_by: str = ""
    """``the root key`` or ``operator`` and the credential's name; empty: nothing."""
    started_at_ms: int
    stopped_at_ms: int | None = None
    reason: str = ""
    processes: tuple[ProcessView, ...] = ()


def nodes_of(
    messages: Iterable[StoredMessage],
    alive: Collection[str],
    partitions: Iterable[Claim],
    voucher_of: Callable[[Started], str],
) -> list[NodeView]:
    """All nodes of the journal, those with a process of a live claim (``alive``) first.

    ``voucher_of``: says what vouches for a node's key."""
    held = Counter(process_of_holder(claim.holder) for claim in partitions)
    begun: dict[str, Started] = {}
    ended: dict[str, Stopped] = {}
    for stored in messages:
        for fact in _readable_facts(stored):
            match fact:
                case Started():
                    begun[fact.node] = fact
                    ended.pop(fact.node, None)
                case Stopped():
                    ended[fact.node] = fact
    processes: dict[str, list[ProcessView]] = {}
    for name, fact in sorted(begun.items()):
        view = _process_view(fact, ended.get(name), is_alive=name in alive, partitions=held[name])
        processes.setdefault(name.partition(".")[0], []).append(view)
    views = [_node_view(name, found, begun, voucher_of) for name, found in processes.items()]
    return sorted(views, key=lambda view: (view.state != "alive", -view.started_at_ms))


def _readable_facts(stored: StoredMessage) -> Sequence[NodeFact]:
    """The facts of a message; none of one that no node of this version wrote."""
    try:
        return _CODEC.decode(stored.body)
    except CodedError:
        return ()


def _process_view(
    begun: Started, ended: Stopped | None, *, is_alive: bool, partitions: int
) -> ProcessView:
    absent = "stopped" if ended is not None else "gone"
    return ProcessView(
        process=begun.node,
        state="alive" if is_alive else absent,
        partitions=partitions if is_alive else 0,
        pid=begun.pid,
        started_at_ms=begun.at_ms,
        stopped_at_ms=None if ended is None else ended.at_ms,
        reason="" if ended is None else ended.reason,
    )


def _node_view(
    name: str,
    processes: Sequence[ProcessView],
    begun: Mapping[str, Started],
    voucher_of: Callable[[Started], str],
) -> NodeView:
    """A node is as its latest process, of the live ones if there are any."""
    latest = max(processes, key=lambda one: (one.state == "alive", one.started_at_ms))
    fact = begun[latest.process]
    return NodeView(
        node=name,
        state=latest.state,
        partitions=sum(one.partitions for one in processes),
        version=fact.version,
        host=fact.host,
        pid=fact.pid,
        durability=fact.durability,
        builds=fact.builds,
        functions=fact.functions,
        key_id=key_id_of(fact.public_key) if fact.public_key else "",
        vouched_by=voucher_of(fact),
        started_at_ms=fact.at_ms,
        stopped_at_ms=latest.stopped_at_ms,
        reason=latest.reason,
        processes=tuple(processes),
    )
