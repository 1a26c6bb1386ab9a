"""Facts of the family ``node``, written by the kernel under its node's key."""

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
    """Digests of the guests that new sessions on this node begin with."""


class Stopped(Fact, frozen=True, kw_only=True, tag="node.stopped.v1"):
    """The node drained and stopped."""

    node: str
    reason: str = ""


class PartitionsTaken(Fact, frozen=True, kw_only=True, tag="node.partitions_taken.v1"):
    """The node owns these partitions. Until another such fact names them, the server accepts only
    this node's facts under their keys."""

    node: str
    partitions: tuple[int, ...]
    turns: tuple[int, ...]
    """Numbers of the terms, in the same order."""


class CommandQuarantined(Fact, frozen=True, kw_only=True, tag="node.command_quarantined.v1"):
    """A command made its actor fail three times; it is a dead letter, and the actor continues."""

    node: str
    verb: str
    key: str
    command_id: str
    error: ErrorObject
    dead_letter: int | UnsetType = UNSET
    """Number of the dead letter, by which an operator can read or retry it."""


NodeFact = Started | Stopped | PartitionsTaken | CommandQuarantined
NODE_FACTS = NodeFact
