"""Facts of the family ``node``, written by the kernel under its node's key."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from rookery.schemas.envelope import Fact
from rookery.schemas.protection.rights import Rights
from rookery.schemas.run import ErrorObject, Language
from rookery.schemas.scalars import Unsigned

__all__ = [
    "NODE_FACTS",
    "QUARANTINE_KEY",
    "RIGHTS_KEY",
    "Checkpoint",
    "KeyVoucher",
    "MessageQuarantined",
    "NodeFact",
    "OperatorKey",
    "RightsRevoked",
]


class OperatorKey(msgspec.Struct, frozen=True, kw_only=True):
    """The key of an operator's credential, and the issuer's signature of name, role and key."""

    name: str
    public_key: str
    """An NKey of a user."""
    certificate: str


class KeyVoucher(msgspec.Struct, frozen=True, kw_only=True):
    """The signature of a node's public key by the root key or an operator's."""

    root_key: str
    """Empty: the operator's key has signed."""
    signature: str
    operator: OperatorKey | UnsetType = UNSET


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
    functions: str = ""
    """Digest of the JSON list of ``SurfaceTool`` of its own process, the surface ``local``, in the
    blob store; empty: it has none."""
    public_key: str = ""
    """Ed25519, in hex: checks the node's checkpoints. Empty: it signs none."""
    voucher: KeyVoucher | UnsetType = UNSET
    require_keys: bool = False
    """Whether only signed answers release calls on this node."""
    signs_revocations: bool = False
    """Whether it then takes only signed revocations of grants, too. Older versions took any."""


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


class Checkpoint(Fact, frozen=True, kw_only=True, tag="node.checkpoint.v1"):
    """Signs the messages that the node has appended since its last checkpoint; those that hold only
    checkpoints do not count. ``actors/keys/checkpoints.py`` says what exactly is signed."""

    node: str
    number: Unsigned
    """From 1, since the node started."""
    start: Unsigned
    """The messages have sequences above this, which no earlier checkpoint covers."""
    sequence: Unsigned
    """The messages have sequences up to this."""
    messages: Unsigned
    """How many they are."""
    root: str
    """Over the last of them of each entity."""
    previous: str = ""
    """Digest of the node's checkpoint before; empty for the first since it started."""
    uncertain: tuple[str, ...] = ()
    """Chain digests of messages that may or may not have been stored."""
    key_id: str
    signature: str = ""


class CommandQuarantined(Fact, frozen=True, kw_only=True, tag="node.command_quarantined.v1"):
    """A command made its actor fail three times; it is a dead letter, and the actor continues."""

    node: str
    verb: str
    key: str
    command_id: str
    error: ErrorObject
    dead_letter: int | UnsetType = UNSET
    """Number of the dead letter, by which an operator can read or retry it."""


QUARANTINE_KEY: Final = "_quarantine"
"""The key of the entity with the facts about quarantined messages."""


class MessageQuarantined(Fact, frozen=True, kw_only=True, tag="node.message_quarantined.v1"):
    """Readers of the journal skip a damaged message from now on. It stays as it is."""

    node: str
    """The node that found the damage."""
    sequence: int
    family: str
    key: str
    """Of the message's entity."""
    digest: str
    """SHA3-256 of its body."""
    through: int
    """The number that the entity's facts have reached with this message."""
    code: str
    """Why the message is damaged."""
    reason: str
    actor: str = ""
    """The actor's name as the client sent it, unchecked."""


RIGHTS_KEY: Final = "_rights"
"""The key of the entity with the revocations of the realm."""


class RightsRevoked(Fact, frozen=True, kw_only=True, tag="node.rights_revoked.v1"):
    """An operator took rights from a session, in all its generations, and from every session whose
    memory is from it."""

    node: str
    """The node and process that recorded it."""
    session_id: str
    rights: Rights = msgspec.field(name="grants")
    """What is left."""
    reason: str = ""
    actor: str = ""
    """See ``MessageQuarantined``."""


NodeFact = (
    Started
    | Stopped
    | PartitionsTaken
    | Checkpoint
    | CommandQuarantined
    | MessageQuarantined
    | RightsRevoked
)
NODE_FACTS = NodeFact
