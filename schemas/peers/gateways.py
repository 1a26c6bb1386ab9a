"""What gateways to other protocols need of a realm: signed cards, targets of notifications."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rookery.schemas.peers.envelope import EnvelopeId

__all__ = [
    "REPEATS_EXTENSION",
    "CardSignature",
    "ChangePushTarget",
    "PushReceipt",
    "PushTarget",
    "SignCard",
]

REPEATS_EXTENSION: Final = "https://rookery.dev/a2a/repeat/v1"
"""An agent that declares it takes a message of one id once, however often it is sent."""

TargetId = Annotated[str, Meta(min_length=1, max_length=128)]


class SignCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Sign an agent card by the realm's key as a peer (verb ``sign_card``, key: ``_realm``)."""

    card: dict[str, Any]
    """Without its signatures, and without empty members."""
    keys_url: Annotated[str, Meta(max_length=2_000)] = ""
    """Where a reader of the card finds the public key."""


class CardSignature(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``sign_card``: a JWS over the card's canonical JSON (RFC 8785)."""

    protected: str
    signature: str
    key: str
    """The realm's public key, in hex."""
    key_id: str


class PushTarget(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a gateway sends what happens to a request, and how far it is."""

    url: Annotated[str, Meta(min_length=1, max_length=2_000)]
    sealed: Annotated[str, Meta(max_length=16 << 10)] = ""
    """What authenticates the gateway there, which the realm cannot read."""
    delivered: Annotated[str, Meta(max_length=64)] = ""
    """The cursor of the last event that has arrived."""
    failed: Annotated[str, Meta(max_length=64)] = ""
    """Why nothing is sent any more; empty while it is."""


class ChangePushTarget(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Set a target of a request's notifications, or remove it (verb ``push``, key: the session that
    executes the request)."""

    request_id: EnvelopeId
    target_id: TargetId
    target: PushTarget | UnsetType = UNSET
    """Unset: it is removed."""


class PushReceipt(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``push``."""

    request_id: str
    target_id: str
