"""Admission of items from peers: the input of the machine, and the texts of prompts about them."""

from __future__ import annotations

from typing import Any, ClassVar, Final

import msgspec

from rookery.schemas.digest import canonical_json
from rookery.schemas.machines.peer import (
    PeerIngressAck,
    PeerIngressAdmission,
    PeerIngressClassification,
    PeerIngressEnvelopeFacts,
    PeerIngressEnvelopeKind,
    PeerIngressLifecycle,
    PeerIngressMessage,
    PeerIngressPlainEventFacts,
    PeerIngressRequest,
    PeerIngressResponse,
)
from rookery.schemas.machines.transition import PeerIngressClassified

__all__ = [
    "SendResponseCallProjection",
    "admit_envelope",
    "admit_plain_event",
    "classification_params",
    "display_suffix",
    "envelope_text",
    "event_text",
    "pretty_json",
    "trimmed",
]

# --- peer text ------------------------------------------------------------------------------------

# Texts of prompts about peers: JSON for people, names, and how to answer a request.


def pretty_json(value: object) -> str:
    """``value`` as indented JSON: two blanks per level, keys sorted; ``None`` is ``null``."""
    return msgspec.json.format(canonical_json(value), indent=2).decode()


_WHITE_SPACE: Final = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
"""White space of Unicode. ``str.strip`` also strips four control characters, which are invalid
here."""


def trimmed(text: str) -> str:
    """``text`` without surrounding white space."""
    return text.strip(_WHITE_SPACE)


def display_suffix(display_name: str | None) -> str:
    """The text after a peer's id if the peer has a display name."""
    name = trimmed(display_name or "")
    return f" (display_name: {name})" if name else ""


class SendResponseCallProjection(msgspec.Struct, frozen=True, kw_only=True):
    """The tool call that answers a request, as the prompt describes it."""

    TOOL_NAME: ClassVar[str] = "send_response"

    peer_id: str
    display_name: str | None = None
    in_reply_to: str

    def arguments(self) -> dict[str, str]:
        """The arguments of an answer without a result."""
        made = {"in_reply_to": self.in_reply_to, "peer_id": self.peer_id, "status": "completed"}
        name = trimmed(self.display_name or "")
        return {**made, "display_name": name} if name else made

    def instruction_text(self) -> str:
        return (
            f"Answer it with the tool {self.TOOL_NAME} and these arguments: "
            f"{canonical_json(self.arguments()).decode()}. "
            'If it cannot be done, the status is "failed". '
            "Give a result only if the contract of the request says which type it has."
        )


# --- peer admission -------------------------------------------------------------------------------

# Admission of items from outside: the input of the machine peer_ingress, and the text of an
# admitted item.
#
# The machine sees the kind of an envelope, not its content; the text for the session combines both.
# Notices about a peer's lifecycle have no text.


def classification_params(envelope: PeerIngressEnvelopeFacts) -> dict[str, Any]:
    """The parameters of ``classify_external_envelope``."""
    seen: dict[str, Any] = {}
    match envelope.kind:
        case PeerIngressRequest(intent=intent, params=params):
            seen = {"request_intent": intent, "lifecycle_peer_param": _named_peer(params)}
        case PeerIngressLifecycle(kind=kind, params=params):
            seen = {"lifecycle_kind": kind, "lifecycle_peer_param": _named_peer(params)}
        case PeerIngressResponse(in_reply_to=request_id, status=status):
            seen = {"response_status": status, "in_reply_to": request_id}
        case PeerIngressAck(in_reply_to=request_id):
            seen = {"in_reply_to": request_id}
    envelope_kind = PeerIngressEnvelopeKind(str(envelope.kind.__struct_config__.tag))
    sender = {"item_id": envelope.item_id, "from_peer": envelope.from_peer}
    return {**sender, "envelope_kind": envelope_kind, **seen}


def admit_envelope(
    envelope: PeerIngressEnvelopeFacts, classified: PeerIngressClassified
) -> PeerIngressAdmission:
    """The admission of ``envelope``, by its classification."""
    notice = classified.lifecycle_kind is not None
    return _admission(classified, "" if notice else envelope_text(envelope))


def admit_plain_event(
    event: PeerIngressPlainEventFacts, classified: PeerIngressClassified
) -> PeerIngressAdmission:
    """The admission of ``event``, by its classification."""
    return _admission(classified, event_text(event))


def _admission(classified: PeerIngressClassified, text: str) -> PeerIngressAdmission:
    return PeerIngressAdmission(
        classification=PeerIngressClassification(
            input_class=classified.cls,
            kind=classified.kind,
            auth=classified.auth,
            lifecycle_kind=classified.lifecycle_kind,
            response_terminality=classified.response_terminality,
        ),
        lifecycle_peer=classified.lifecycle_peer,
        request_id=classified.request_id,
        rendered_text=text,
    )


def event_text(event: PeerIngressPlainEventFacts) -> str:
    """The text of an event in the session's conversation."""
    label, body = f"[EVENT via {event.source_name}]", trimmed(event.body)
    return f"{label} {body}" if body else label


def _named_peer(params: Any) -> str | None:
    peer = params.get("peer") if isinstance(params, dict) else None
    return peer if isinstance(peer, str) and peer else None


def envelope_text(envelope: PeerIngressEnvelopeFacts) -> str:
    """The text of an item in the session's conversation; empty for a notice."""
    sender = envelope.from_peer
    match envelope.kind:
        case PeerIngressMessage(body=body):
            return f"[COMMS MESSAGE from {sender}]\n{body}"
        case PeerIngressRequest() as request:
            return _request_text(envelope, request)
        case PeerIngressResponse(in_reply_to=request_id, status=status, result=result):
            heading = f"[COMMS RESPONSE from {sender} (to request: {request_id})]"
            return f"{heading}\nStatus: {status}{_line('Result', result)}"
        case PeerIngressAck(in_reply_to=request_id):
            return f"[COMMS ACK from {sender} (to request: {request_id})]"
        case PeerIngressLifecycle():
            return ""


def _request_text(envelope: PeerIngressEnvelopeFacts, request: PeerIngressRequest) -> str:
    peer_id, name, item_id = envelope.from_peer_id, envelope.from_peer, envelope.item_id
    answer = SendResponseCallProjection(peer_id=peer_id, display_name=name, in_reply_to=item_id)
    return (
        f"[COMMS REQUEST from peer_id {peer_id}{display_suffix(name)} (id: {item_id})]\n"
        f"Intent: {request.intent}{_line('Params', request.params)}\n\n"
        f"{answer.instruction_text()} Do not use send_message for this reply."
    )


def _line(label: str, value: Any) -> str:
    """The line; empty for an empty text."""
    return "" if value is None or value == {} else f"\n{label}: {pretty_json(value)}"
