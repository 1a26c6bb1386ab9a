"""The admission of verified envelopes: what each is for the machines, and what it ends or begins.

A verified request that is not wanted is declined: its sender is sent why, and waits no longer.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.peers.envelopes.envelope_rules import (
    EnvelopeChecks,
    EnvelopeSender,
    ReplayWindow,
    SignedEnvelope,
)
from rookery.actors.peers.items.item_queue import is_full
from rookery.actors.peers.items.terms import check_terms
from rookery.actors.peers.state import UNANSWERED_MAX, SessionPeers
from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import Refused
from rookery.schemas.machines.peer import (
    SUPERVISOR_BRIDGE_INTENT,
    PeerIngressAck,
    PeerIngressEnvelopeFacts,
    PeerIngressLifecycle,
    PeerIngressMessage,
    PeerIngressRequest,
    PeerIngressResponse,
    ResponseStatus,
)
from rookery.schemas.peers.envelope import (
    Envelope,
    EnvelopeArrival,
    EnvelopeKind,
    UnansweredRequest,
)
from rookery.schemas.peers.exchanges import PeerResponse, UnmatchedReason
from rookery.schemas.peers.items import ItemKind, PeerItem
from rookery.schemas.peers.roster import REALM_NAME

__all__ = [
    "NotAttended",
    "arrival_of",
    "check_request",
    "ingress_facts",
    "response_of",
    "unanswered_request",
    "unmatched",
    "verify_arrival",
]


class NotAttended(Refused):
    """A verified envelope that the session does not take."""

    def __init__(self, session: str, envelope: Envelope, sender: EnvelopeSender) -> None:
        super().__init__("PEER_NOT_ATTENDED", f"session {session} takes no envelopes now")
        self.session, self.envelope, self.sender = session, envelope, sender

    def without_content(self) -> NotAttended:
        """What its answer needs, to be kept until there is one."""
        small = replace(self.envelope, params=UNSET, body=UNSET, path=())
        return NotAttended(self.session, small, self.sender)


def verify_arrival(
    checks: EnvelopeChecks,
    state: SessionPeers,
    session: str,
    signed: SignedEnvelope,
    arrived_ms: int,
) -> EnvelopeSender:
    """The sender of an envelope; ``Refused``, also if it was admitted before.

    A response of a realm itself counts whatever its number is if it ends an open request, which
    ends once: such numbers follow the clock of the node that sends them, and those of two nodes may
    be equal, or further apart than the window is wide.
    """
    envelope = signed.envelope
    window = state.windows.get(envelope.from_key, ReplayWindow())
    is_of_realm = envelope.from_ == REALM_NAME and envelope.kind is EnvelopeKind.RESPONSE
    may_end = is_of_realm and envelope.in_reply_to in state.requests
    checked = ReplayWindow() if may_end else window
    sender = checks.verify(checked, session, signed, arrived_ms=arrived_ms)
    if may_end and window.has(envelope.n) and unmatched(state, envelope, sender) is not None:
        raise Refused("ENVELOPE_REPLAYED", f"number {envelope.n} was used")
    return sender


def ingress_facts(envelope: Envelope, sender: EnvelopeSender) -> PeerIngressEnvelopeFacts:
    """An envelope in the words of the machine that classifies it."""
    return PeerIngressEnvelopeFacts(
        item_id=envelope.id,
        from_peer=sender.address,
        from_peer_id=sender.peer_id,
        kind=_kind_of(envelope),
    )


def arrival_of(signed: SignedEnvelope, sender: EnvelopeSender, arrived_ms: int) -> EnvelopeArrival:
    """The proof of an envelope, as its fact holds it."""
    return EnvelopeArrival(
        text=signed.body.decode(),
        signature=signed.proof.signature,
        vouch=signed.proof.vouch,
        sender=sender.address,
        peer_id=sender.peer_id,
        from_key=signed.envelope.from_key,
        n=signed.envelope.n,
        roster_change=sender.change,
        arrived_ms=arrived_ms,
    )


def _kind_of(envelope: Envelope) -> Any:
    """The members that a kind must have were checked when the envelope was read."""
    match envelope.kind:
        case EnvelopeKind.MESSAGE:
            body = envelope.body
            text = body if isinstance(body, str) else canonical_json(body).decode()
            return PeerIngressMessage(body=text)
        case EnvelopeKind.REQUEST:
            return PeerIngressRequest(intent=str(envelope.intent), params=_or_none(envelope.params))
        case EnvelopeKind.RESPONSE:
            assert envelope.status is not UNSET
            return PeerIngressResponse(
                in_reply_to=str(envelope.in_reply_to),
                status=envelope.status,
                result=_or_none(envelope.result),
            )
        case EnvelopeKind.ACK:
            return PeerIngressAck(in_reply_to=str(envelope.in_reply_to))
        case EnvelopeKind.LIFECYCLE:
            assert envelope.lifecycle is not UNSET
            named = None if envelope.peer is UNSET else {"peer": envelope.peer}
            return PeerIngressLifecycle(kind=envelope.lifecycle, params=named)


def _or_none(value: Any) -> Any:
    return None if value is UNSET else value


# --- requests -------------------------------------------------------------------------------------


def check_request(
    state: SessionPeers, envelope: Envelope, sender: EnvelopeSender, own_id: str
) -> None:
    """``Refused`` if a request is to be declined. ``own_id``: of the session as a peer."""
    if not _may_request(envelope, sender):
        raise Refused("PEER_INTENT_NOT_ALLOWED", f"{sender.address} may not request this")
    if state.responder is not UNSET:
        check_terms(state.responder, str(envelope.intent), _or_none(envelope.params))
    if envelope.id in state.unanswered or state.replied.get(envelope.id) is not None:
        raise Refused("PEER_REQUEST_ID_TAKEN", "another request has this id")
    if own_id in envelope.path and not _is_received(state, envelope, sender):
        raise Refused("PEER_CYCLE", "the session waits for a response on the way to this request")
    if len(state.unanswered) >= UNANSWERED_MAX or is_full(state):
        raise Refused("PEER_QUEUE_FULL", f"{UNANSWERED_MAX} requests wait for a response")


def _is_received(state: SessionPeers, envelope: Envelope, sender: EnvelopeSender) -> bool:
    """Whether a program of the session waits for this request."""
    item = PeerItem(
        id=envelope.id,
        kind=ItemKind(envelope.kind.value),
        from_=sender.address,
        peer_id=sender.peer_id,
        thread="",
        intent=envelope.intent,
        at_ms=envelope.at_ms,
    )
    return any(one.pattern.matches(item) for one in state.receivers)


def _may_request(envelope: Envelope, sender: EnvelopeSender) -> bool:
    """The bridge of a supervisor is the own realm's, and of no other."""
    intent = str(envelope.intent)
    if intent == SUPERVISOR_BRIDGE_INTENT:
        return sender.peer is None and sender.is_realm
    if sender.peer is None:
        return True
    return any(fnmatchcase(intent, allowed) for allowed in sender.peer.pairing.intents)


def unanswered_request(envelope: Envelope, sender: EnvelopeSender) -> UnansweredRequest:
    """What the response to a request needs of it."""
    assert envelope.due_at_ms is not UNSET
    return UnansweredRequest(
        alias=sender.alias,
        name=sender.name,
        intent=str(envelope.intent),
        thread=envelope.id if envelope.thread is UNSET else envelope.thread,
        due_at_ms=envelope.due_at_ms,
    )


# --- responses ------------------------------------------------------------------------------------


def response_of(envelope: Envelope) -> PeerResponse:
    """The content of a response."""
    assert envelope.status is not UNSET
    return PeerResponse(
        status=envelope.status,
        phase=envelope.phase,
        result=envelope.result,
        error=envelope.error,
    )


def unmatched(
    state: SessionPeers, envelope: Envelope, sender: EnvelopeSender
) -> UnmatchedReason | None:
    """Why a response changes no request; ``None`` if it is that of an open one. Only the peer that
    was asked responds, or its realm, which may say that it failed."""
    corr_id = str(envelope.in_reply_to)
    request = state.requests.get(corr_id)
    if request is None:
        return state.ended.get(corr_id) or UnmatchedReason.UNKNOWN
    has_failed = envelope.status is ResponseStatus.FAILED
    is_asked = sender.name == request.name or (sender.is_realm and has_failed)
    return None if is_asked and sender.alias == request.alias else UnmatchedReason.WRONG_PEER
