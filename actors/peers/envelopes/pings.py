"""What a realm itself sends: pings of other realms, the answers to them, and responses to requests
that no session takes. None of it is on record: a stranger shall create no entity.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from rookery.actors.peers.admission import NotAttended
from rookery.actors.peers.roster.roster_rules import Roster
from rookery.schemas.digest import canonical_json
from rookery.schemas.ids import derived_uuid7
from rookery.schemas.machines.peer import ResponseStatus
from rookery.schemas.peers.envelope import (
    PING_INTENT,
    Envelope,
    EnvelopeKind,
    OutboxEnvelope,
    PeerFailure,
)
from rookery.schemas.peers.roster import REALM_NAME, PeerKind

__all__ = ["ping_envelope", "realm_response"]

LIFE_MS: Final = 7 * 86_400_000
PING_LIFE_MS: Final = 60_000


def realm_response(
    refusal: NotAttended, roster: Roster, from_key: str, *, number: int, now_ms: int
) -> OutboxEnvelope:
    """The response of the realm itself to a request that no session takes, or to a ping."""
    request, sender = refusal.envelope, refusal.sender
    is_ping = request.to == REALM_NAME and request.intent == PING_INTENT
    failure = PeerFailure(code=refusal.code, message=refusal.message[:300])
    answer = (
        {"status": ResponseStatus.COMPLETED}
        if is_ping
        else {"status": ResponseStatus.FAILED, "error": failure}
    )
    members = {
        "kind": EnvelopeKind.RESPONSE,
        "id": derived_uuid7(now_ms, roster.realm_key, request.id, REALM_NAME),
        "to": sender.name,
        "to_realm_key": roster.realm_key if sender.peer is None else sender.peer.pairing.key,
        "expires_at_ms": now_ms + (PING_LIFE_MS if is_ping else LIFE_MS),
        "in_reply_to": request.id,
        **answer,
    }
    sent = _packed(sender.alias, members, from_key, number, now_ms)
    is_client = sender.peer is not None and sender.peer.pairing.kind is PeerKind.CLIENT
    return replace(sent, is_client=is_client)


def ping_envelope(
    alias: str, to_realm_key: str, from_key: str, *, number: int, now_ms: int
) -> OutboxEnvelope:
    """A request to a realm itself, which its node answers at once."""
    members = {
        "kind": EnvelopeKind.REQUEST,
        "id": derived_uuid7(now_ms, from_key, alias, str(number)),
        "to": REALM_NAME,
        "to_realm_key": to_realm_key,
        "expires_at_ms": now_ms + PING_LIFE_MS,
        "due_at_ms": now_ms + PING_LIFE_MS,
        "intent": PING_INTENT,
    }
    return _packed(alias, members, from_key, number, now_ms)


def _packed(
    alias: str, members: dict[str, Any], from_key: str, number: int, now_ms: int
) -> OutboxEnvelope:
    envelope = Envelope(v=1, from_=REALM_NAME, from_key=from_key, n=number, at_ms=now_ms, **members)
    return OutboxEnvelope(
        id=envelope.id,
        alias=alias,
        to=envelope.to,
        text=canonical_json(envelope).decode(),
        from_key=from_key,
        n=envelope.n,
        expires_at_ms=envelope.expires_at_ms,
    )
