"""The roster: whom a realm trusts as peers, by their keys, and the changes of that.

A change is a command (``NamePeer``) and then a fact, which holds the same record and signature.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rookery.schemas.calls import ApprovalMode
from rookery.schemas.scalars import Unsigned

__all__ = [
    "REALM_NAME",
    "ROSTER_KEY",
    "Alias",
    "Enrolment",
    "KeyRotation",
    "NamePeer",
    "Pairing",
    "Pattern",
    "PeerKind",
    "PeerRevocation",
    "PublicKey",
    "RemoteAgent",
    "RosterReceipt",
    "SignatureText",
]

ROSTER_KEY: Final = "_roster"
"""The key of the realm's roster, one entity of the family ``peer``."""
REALM_NAME: Final = "_realm"
"""The name of the key with which a realm itself signs."""

PublicKey = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
"""Ed25519, in hex."""
SignatureText = Annotated[str, Meta(pattern="^([0-9a-f]{128})?$")]
"""Ed25519, in hex; empty without a signature."""
Alias = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,32}$")]
"""What this realm calls a peer: a token of subjects, as the name of a realm is."""
Name = Annotated[str, Meta(pattern="^[A-Za-z0-9_-]{1,64}$")]
"""A session, or the name of a client."""
Pattern = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.*?-]{1,128}$")]
"""A name; ``*`` and ``?`` match any characters, and any one."""
Patterns = Annotated[tuple[Pattern, ...], Meta(min_length=1, max_length=64)]


class PeerKind(StrEnum):
    """What a key of the roster identifies."""

    REALM = "realm"
    """A realm, which vouches for the keys of its sessions."""
    CLIENT = "client"
    """One peer with a key of its own."""
    AGENT = "a2a"
    """An agent elsewhere, which is reached by the protocol A2A and known by its card."""


class RemoteAgent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An agent of the protocol A2A, as it was accepted."""

    card_url: Annotated[str, Meta(min_length=1, max_length=2_000)]
    url: Annotated[str, Meta(min_length=1, max_length=2_000)]
    """Where it takes messages, as its card says."""
    name: Annotated[str, Meta(max_length=256)]
    digest: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    """Of the card without its signatures."""
    card_key: Annotated[str, Meta(max_length=1_000)] = ""
    """The key that has signed the card, as a JSON Web Key: any card counts that it signs for the
    same URL. Empty: only the card with this digest counts."""
    lease: Annotated[str, Meta(max_length=200)] = ""
    """The binding whose credential it gets; empty without one."""


class Enrolment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The key of a realm in one generation of its secret, and the proof that the realm has it."""

    realm: Annotated[str, Meta(min_length=1, max_length=32)]
    """What the realm calls itself; other realms may have the same name."""
    generation: Annotated[int, Meta(ge=1, le=2**31)]
    key: PublicKey
    former_key: Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")] = ""
    """The key of the generation before, if this one replaces it."""
    signature: SignatureText
    """By the key, over all fields but the signatures."""
    former_signature: SignatureText = ""
    """By the former key, over the same."""


class Pairing(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A peer that is trusted, and with what."""

    alias: Alias
    kind: PeerKind = PeerKind.REALM
    key: PublicKey
    names: Patterns = ("*",)
    """Its sessions that may send; of a client, the name it has."""
    intents: Patterns = ("*",)
    """What it may request."""
    sessions: Patterns = ("*",)
    """The sessions of this realm that it may address."""
    approval: ApprovalMode | UnsetType = UNSET
    """What a program needs to send to it; unset: ``manual``."""
    agent: RemoteAgent | UnsetType = UNSET
    """Of the kind ``a2a``, whose ``key`` follows from the address of its card."""
    expires_at_ms: Unsigned | UnsetType = UNSET
    manual_rotation: bool = False
    """An operator accepts its next key; the signature of its present one is not enough."""


class KeyRotation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The next key of a paired realm, or of a session of this one."""

    alias: Alias | UnsetType = UNSET
    enrolment: Enrolment | UnsetType = UNSET
    """Of the realm with this alias; its former key is the one that the roster has."""
    session: Name | UnsetType = UNSET
    number: Annotated[int, Meta(ge=2, le=2**31)] | UnsetType = UNSET
    """Of the session's key; each session begins with number 1."""


class PeerRevocation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A peer, or one name of a paired realm, is not trusted any more."""

    alias: Alias
    name: Name | UnsetType = UNSET
    reason: Annotated[str, Meta(max_length=300)] = ""


class NamePeer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Change the roster (verb ``roster``, key: ``_roster``). It has exactly one of ``enrol``,
    ``pair``, ``rotate`` and ``revoke``.

    Once the realm has an approver or a root key, one of these signs every change but the realm's
    first enrolment and rotations that the former key of a paired realm has signed.
    """

    enrol: Enrolment | UnsetType = UNSET
    pair: Pairing | UnsetType = UNSET
    rotate: KeyRotation | UnsetType = UNSET
    revoke: PeerRevocation | UnsetType = UNSET
    former_until_ms: Unsigned | UnsetType = UNSET
    """Of ``enrol`` and ``rotate``: how long the former key counts beside the new one."""
    change: Unsigned = 0
    """Number of this change, above that of every earlier one; a signed change applies once."""
    key_id: Annotated[str, Meta(max_length=40)] = ""
    """Id of the key that signed the change."""
    signature: SignatureText = ""
    """Ed25519 in hex, over the other fields and the realm."""


class RosterReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``roster``."""

    change: int
    """The number of the newest change."""
    signed: bool = False
    """Whether this change has a valid signature."""
