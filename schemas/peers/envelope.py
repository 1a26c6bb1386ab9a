"""Envelopes: what peers send each other. Their sender signs the bytes as they travel.

Our envelopes are canonical JSON, those of others need not be: nothing is encoded again to verify
it. A member that the kind does not have, or twice the same one, makes the envelope invalid.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType

from rookery.schemas.codec import nested_too_deeply
from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import Refused
from rookery.schemas.machines.peer import (
    PeerLifecycleKind,
    PeerResponseProgressProjectionPhase,
    ResponseStatus,
)
from rookery.schemas.peers.roster import Name, PublicKey
from rookery.schemas.scalars import Unsigned

__all__ = [
    "AUTH_A2A",
    "CLOCK_ERROR_MS",
    "ENVELOPE_BYTES_MAX",
    "ENVELOPE_DOMAIN",
    "PING_INTENT",
    "Envelope",
    "EnvelopeArrival",
    "EnvelopeId",
    "EnvelopeKind",
    "Intent",
    "OutboxEnvelope",
    "PeerFailure",
    "UnansweredRequest",
    "read_envelope",
]

ENVELOPE_DOMAIN: Final = b"rookery.envelope.v1\n"
"""In front of the signed bytes."""
ENVELOPE_BYTES_MAX: Final = 256 << 10
_LEVELS_MAX: Final = 64
_LIFE_MS_MAX: Final = 7 * 86_400_000
"""As long as an inbox keeps a command."""
_DUE_MS_MAX: Final = 365 * 86_400_000
CLOCK_ERROR_MS: Final = 300_000
"""How far the clocks of two realms may differ."""

EnvelopeId = Annotated[
    str, Meta(pattern="^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$")
]
"""A UUID as text."""
Intent = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]{1,128}$")]


AUTH_A2A: Final = "a2a"
"""Of ``EnvelopeArrival.auth``."""
PING_INTENT = "peer.ping"
"""A realm itself answers requests of this intent to itself."""


class EnvelopeKind(StrEnum):
    """What an envelope is for."""

    MESSAGE = "message"
    REQUEST = "request"
    RESPONSE = "response"
    ACK = "ack"
    LIFECYCLE = "lifecycle"


class PeerFailure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why a request failed."""

    code: Annotated[str, Meta(max_length=64)]
    message: Annotated[str, Meta(max_length=2_000)] = ""


class Envelope(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One message between two peers (verb ``envelope``, key: the receiving session)."""

    v: int
    kind: EnvelopeKind
    id: EnvelopeId
    """Equal to the header ``Nats-Msg-Id``; of a request, what its responses quote."""
    from_: Name = msgspec.field(name="from")
    from_key: PublicKey
    """Its key; it also says of which realm the sender is."""
    to: Name
    to_realm_key: PublicKey
    n: Annotated[int, Meta(ge=1, le=2**53)]
    """Counts the envelopes of this key to this receiver, from 1."""
    at_ms: Unsigned
    expires_at_ms: Unsigned
    """Until when it may be admitted, at most 7 days later."""
    due_at_ms: Unsigned | UnsetType = UNSET
    """Until when the sender of a request waits for the response, at most a year."""
    thread: EnvelopeId | UnsetType = UNSET
    """The conversation; unset: the one that this envelope begins."""
    in_reply_to: EnvelopeId | UnsetType = UNSET
    intent: Intent | UnsetType = UNSET
    params: Any = UNSET
    body: Any = UNSET
    status: ResponseStatus | UnsetType = UNSET
    phase: PeerResponseProgressProjectionPhase | UnsetType = UNSET
    result: Any = UNSET
    error: PeerFailure | UnsetType = UNSET
    lifecycle: PeerLifecycleKind | UnsetType = UNSET
    peer: Annotated[str, Meta(max_length=256)] | UnsetType = UNSET
    """The peer that a lifecycle event concerns; unset: the sender."""
    path: Annotated[tuple[EnvelopeId, ...], Meta(max_length=16)] = ()
    """The ids of the peers that wait for a request."""
    traceparent: Annotated[str, Meta(max_length=128)] = ""


class EnvelopeArrival(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An envelope that was verified, so that the proof can be repeated from the journal."""

    text: str
    """Exactly the bytes that are signed."""
    signature: str
    vouch: str = ""
    sender: str
    """The sender's address, as the receiving realm spells it."""
    peer_id: str
    from_key: str
    n: int
    roster_change: int
    """The change of the roster after which the sender was trusted."""
    arrived_ms: int
    auth: str = ""
    """How its sender is known: by the signature; ``a2a``: by TLS and the card that was accepted,
    and the text is what this realm has made of the agent's answer."""


class OutboxEnvelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An envelope of ours, on record before it leaves."""

    id: str
    alias: str
    """Of the receiving realm, or client."""
    to: str
    text: str
    """Exactly the bytes that the session's key signs."""
    from_key: str
    n: int
    expires_at_ms: int
    is_client: bool = False
    """Its receiver is a client of this realm, which has a key and no inbox."""
    is_agent: bool = False
    """Its receiver is an agent elsewhere, which gets it as a message of A2A."""


class UnansweredRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A peer's request, as far as its response needs it."""

    alias: str
    name: str
    intent: str
    thread: str
    due_at_ms: int


_COMMON: Final = (
    *("v", "kind", "id", "from_", "from_key", "to", "to_realm_key", "n"),
    *("at_ms", "expires_at_ms", "thread", "traceparent"),
)
_MEMBERS: Final[dict[EnvelopeKind, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    EnvelopeKind.MESSAGE: (("body",), ("in_reply_to",)),
    EnvelopeKind.REQUEST: (("intent", "due_at_ms"), ("params", "path")),
    EnvelopeKind.RESPONSE: (("in_reply_to", "status"), ("phase", "result", "error")),
    EnvelopeKind.ACK: (("in_reply_to",), ()),
    EnvelopeKind.LIFECYCLE: (("lifecycle",), ("peer",)),
}
"""The members of each kind beside the common ones: those it must have, and those it may have."""
_FOREIGN: Final = {
    kind: tuple(
        name for name in Envelope.__struct_fields__ if name not in (*_COMMON, *required, *optional)
    )
    for kind, (required, optional) in _MEMBERS.items()
}
_EMPTY: Final = (UNSET, ())

_decode = msgspec.json.Decoder(Envelope).decode


def read_envelope(body: bytes) -> Envelope:
    """The envelope of signed bytes; ``ENVELOPE_INVALID`` if they do not have its form."""
    if nested_too_deeply(body, _LEVELS_MAX):
        raise _invalid(f"it is nested deeper than {_LEVELS_MAX} levels")
    try:
        envelope = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(str(error)) from None
    if fault := _fault(envelope):
        raise _invalid(fault)
    try:
        is_canonical = canonical_json(envelope) == body
    except Refused as refusal:
        raise _invalid(refusal.message) from None
    if not is_canonical:
        _refuse_duplicates(body)
    return envelope


def _fault(envelope: Envelope) -> str:
    """Why the members do not fit together; empty if they do."""
    kind, life_ms = envelope.kind, envelope.expires_at_ms - envelope.at_ms
    if envelope.v != 1:
        return f"version {envelope.v} is not known"
    for name in _MEMBERS[kind][0]:
        if getattr(envelope, name) is UNSET:
            return f"{kind} needs {name}"
    for name in _FOREIGN[kind]:
        if getattr(envelope, name) not in _EMPTY:
            return f"{kind} has no {name}"
    if not 0 < life_ms <= _LIFE_MS_MAX:
        return "it expires more than 7 days after it was made, or before"
    if envelope.due_at_ms is not UNSET:
        due_ms = envelope.due_at_ms - envelope.at_ms
        if not 0 < due_ms <= _DUE_MS_MAX:
            return "its response is due later than in a year, or before it was made"
    return _response_fault(envelope) if kind is EnvelopeKind.RESPONSE else ""


def _response_fault(envelope: Envelope) -> str:
    is_progress = envelope.status is ResponseStatus.ACCEPTED
    if is_progress != (envelope.phase is not UNSET):
        return "a response has a phase while it is accepted, and only then"
    if (envelope.status is ResponseStatus.FAILED) != (envelope.error is not UNSET):
        return "a response has an error if it failed, and only then"
    return ""


def _refuse_duplicates(body: bytes) -> None:
    """Refuse an object with two members of one name, of which readers may take either."""
    try:
        json.loads(body, object_pairs_hook=_require_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise _invalid(str(error)) from None


def _require_unique(members: list[tuple[str, Any]]) -> None:
    if len(dict(members)) != len(members):
        raise ValueError("an object has two members of one name")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _invalid(why: str) -> Refused:
    return Refused("ENVELOPE_INVALID", why)
