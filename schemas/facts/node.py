"""Facts of the family ``node``: the kernel writes them under the key of the node it runs in."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from rookery.schemas.envelope import Fact
from rookery.schemas.run import ErrorObject, Language

__all__ = ["NODE_FACTS", "NodeFact"]


class Started(Fact, frozen=True, kw_only=True, tag="node.started.v1"):
    """The node serves its realm."""

    node: str
    version: str
    host: str
    pid: int
    durability: str
    """``always`` where every ack follows an fsync, ``replicated``, or ``unknown_accepted``."""
    builds: dict[Language, str] = msgspec.field(default_factory=dict)
    """Digests of the guests that new sessions begin with here."""


class Stopped(Fact, frozen=True, kw_only=True, tag="node.stopped.v1"):
    """The node drained and left."""

    node: str
    reason: str = ""


class PartitionsTaken(Fact, frozen=True, kw_only=True, tag="node.partitions_taken.v1"):
    """From here on this node alone appends under the keys of these partitions, until another such
    fact names them: the server takes nobody else's facts."""

    node: str
    partitions: tuple[int, ...]
    turns: tuple[int, ...]
    """In the same order, how often each has changed hands."""


class CommandQuarantined(Fact, frozen=True, kw_only=True, tag="node.command_quarantined.v1"):
    """A command made its actor fail three times; it was set aside and the actor goes on."""

    node: str
    verb: str
    key: str
    command_id: str
    error: ErrorObject
    dead_letter: int | UnsetType = UNSET
    """Its number in the dead letters, where it can be looked at and sent again."""


NodeFact = Started | Stopped | PartitionsTaken | CommandQuarantined
NODE_FACTS = NodeFact
