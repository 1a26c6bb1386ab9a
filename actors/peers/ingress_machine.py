"""peer_ingress: classifies an item from outside before the session acts on it.

The machine uses the phase of the host and has no state of its own; a refused item is not admitted.
It only says whether the sender must be trusted; the transport verifies that. The text of an
admitted item is made of its contents by ``rookery.schemas.machines.peer_admission``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rookery.actors.kernel.machines import (
    ATTACHED,
    LIVE,
    RUNNING,
    HostPhase,
    Machine,
    MachineInput,
    SessionHost,
    Transition,
    TransitionEffect,
    session_registered,
)
from rookery.schemas.facts import peer as facts
from rookery.schemas.machines.peer import (
    SUPERVISOR_BRIDGE_INTENT,
    PeerIngressAuthDecision,
    PeerIngressEnvelopeKind,
    PeerIngressKind,
    PeerInputClass,
    PeerLifecycleKind,
    ResponseStatus,
    TerminalityClass,
)
from rookery.schemas.machines.transition import PeerIngressClassified

__all__ = ["INGRESS"]

MESSAGE, REQUEST, LIFECYCLE, RESPONSE, ACK = PeerIngressEnvelopeKind
NOTICES = {
    "Added": (PeerLifecycleKind.PEER_ADDED, PeerInputClass.PEER_LIFECYCLE_ADDED),
    "Retired": (PeerLifecycleKind.PEER_RETIRED, PeerInputClass.PEER_LIFECYCLE_RETIRED),
    "Unwired": (PeerLifecycleKind.PEER_UNWIRED, PeerInputClass.PEER_LIFECYCLE_UNWIRED),
}
RESPONSES = {
    ResponseStatus.ACCEPTED: PeerInputClass.RESPONSE_PROGRESS,
    ResponseStatus.COMPLETED: PeerInputClass.RESPONSE_TERMINAL,
    ResponseStatus.FAILED: PeerInputClass.RESPONSE_TERMINAL,
}
RESERVED_INTENTS = frozenset([SUPERVISOR_BRIDGE_INTENT, *PeerLifecycleKind])
"""Requests with these intents have transitions of their own."""


# --- effects --------------------------------------------------------------------------------------


class EnqueueClassifiedEntry(TransitionEffect, frozen=True, kw_only=True):
    """Enqueue the item for the session."""


EffectList = tuple[TransitionEffect | Callable[[SessionHost, Any], TransitionEffect], ...]
ENQUEUE = EnqueueClassifiedEntry()


def classify_request(
    cls: PeerInputClass, auth: PeerIngressAuthDecision = PeerIngressAuthDecision.REQUIRED
) -> EffectList:
    def classified(_: SessionHost, fact: facts.EnvelopeClassified) -> TransitionEffect:
        return PeerIngressClassified(
            cls=cls, kind=PeerIngressKind.REQUEST, auth=auth, request_id=fact.item_id
        )

    return (ENQUEUE, classified)


def classify_notice(cls: PeerInputClass, kind: PeerLifecycleKind) -> EffectList:
    """Only a notice that came as a request refers to an id."""

    def classified(_: SessionHost, fact: facts.EnvelopeClassified) -> TransitionEffect:
        return PeerIngressClassified(
            cls=cls,
            kind=PeerIngressKind.REQUEST,
            lifecycle_kind=kind,
            lifecycle_peer=fact.lifecycle_peer_param or fact.from_peer,
            request_id=fact.item_id if fact.envelope_kind is REQUEST else None,
        )

    return (ENQUEUE, classified)


def classify_response(cls: PeerInputClass, terminality: TerminalityClass) -> EffectList:
    def classified(_: SessionHost, fact: facts.EnvelopeClassified) -> TransitionEffect:
        return PeerIngressClassified(
            cls=cls,
            kind=PeerIngressKind.RESPONSE,
            request_id=fact.in_reply_to,
            response_terminality=terminality,
        )

    return (ENQUEUE, classified)


def classify_ack(_: SessionHost, fact: facts.EnvelopeClassified) -> TransitionEffect:
    return PeerIngressClassified(
        cls=PeerInputClass.ACK, kind=PeerIngressKind.ACK, request_id=fact.in_reply_to
    )


MESSAGE_CLASSIFIED = PeerIngressClassified(
    cls=PeerInputClass.ACTIONABLE_MESSAGE, kind=PeerIngressKind.MESSAGE
)
PLAIN_EVENT_CLASSIFIED = PeerIngressClassified(
    cls=PeerInputClass.PLAIN_EVENT, kind=PeerIngressKind.PLAIN_EVENT
)
EXEMPT = PeerIngressAuthDecision.SUPERVISOR_BRIDGE_EXEMPT


# --- when rows hold -------------------------------------------------------------------------------

Guard = Callable[[SessionHost, facts.EnvelopeClassified], bool]


def is_listening(host: SessionHost, _: Any = None) -> bool:
    return host.phase in (ATTACHED, RUNNING) and session_registered(host)


def is_request(intent: str) -> Guard:
    return lambda h, a: (
        a.envelope_kind is REQUEST and a.request_intent == intent and is_listening(h)
    )


def is_notice(kind: PeerLifecycleKind) -> Guard:
    return lambda h, a: (
        a.envelope_kind is LIFECYCLE and a.lifecycle_kind is kind and is_listening(h)
    )


def is_response(status: ResponseStatus) -> Guard:
    return lambda h, a: (
        a.envelope_kind is RESPONSE and a.response_status is status and is_listening(h)
    )


def is_bridge_request(*, silent: bool) -> Guard:
    return lambda h, a: (
        a.envelope_kind is REQUEST
        and a.request_intent == SUPERVISOR_BRIDGE_INTENT
        and (a.request_intent in h.silent_intents) is silent
        and is_listening(h)
    )


def is_ordinary_request(*, silent: bool) -> Guard:
    return lambda h, a: (
        a.envelope_kind is REQUEST
        and a.request_intent not in RESERVED_INTENTS
        and (a.request_intent in h.silent_intents) is silent
        and is_listening(h)
    )


# --- the machine ----------------------------------------------------------------------------------

_ENVELOPE = "classify_external_envelope"

# fmt: off
_ROWS = (
    Transition("EnvelopeMessage", _ENVELOPE,
        lambda h, a: a.envelope_kind is MESSAGE and is_listening(h),
        effects=(ENQUEUE, MESSAGE_CLASSIFIED)),
    *(Transition(f"EnvelopeRequestPeer{word}", _ENVELOPE, is_request(kind),
          effects=classify_notice(cls, kind))
      for word, (kind, cls) in NOTICES.items()),
    Transition("EnvelopeRequestSupervisorSilent", _ENVELOPE, is_bridge_request(silent=True),
        effects=classify_request(PeerInputClass.SILENT_REQUEST, EXEMPT)),
    Transition("EnvelopeRequestSilent", _ENVELOPE, is_ordinary_request(silent=True),
        effects=classify_request(PeerInputClass.SILENT_REQUEST)),
    Transition("EnvelopeRequestSupervisor", _ENVELOPE, is_bridge_request(silent=False),
        effects=classify_request(PeerInputClass.ACTIONABLE_REQUEST, EXEMPT)),
    Transition("EnvelopeRequestActionable", _ENVELOPE, is_ordinary_request(silent=False),
        effects=classify_request(PeerInputClass.ACTIONABLE_REQUEST)),
    *(Transition(f"EnvelopeLifecycle{word}", _ENVELOPE, is_notice(kind),
          effects=classify_notice(cls, kind))
      for word, (kind, cls) in NOTICES.items()),
    *(Transition(f"EnvelopeResponse{status.variant}", _ENVELOPE, is_response(status),
          effects=classify_response(cls, status.terminality))
      for status, cls in RESPONSES.items()),
    Transition("EnvelopeAck", _ENVELOPE,
        lambda h, a: a.envelope_kind is ACK and is_listening(h),
        effects=(ENQUEUE, classify_ack)),
    Transition("PlainEvent", "classify_plain_event", is_listening,
        effects=(ENQUEUE, PLAIN_EVENT_CLASSIFIED)),
    Transition("SetPeerIngressContext", "set_peer_ingress_context",
        lambda h, _: h.phase in LIVE and session_registered(h)),
)
# fmt: on

INGRESS = Machine(
    "peer_ingress",
    handle="PeerCommsHandle",
    phases=tuple(HostPhase),
    initial=SessionHost(),
    inputs={
        _ENVELOPE: MachineInput(
            facts.EnvelopeClassified,
            (
                "item_id",
                "from_peer",
                "envelope_kind",
                "request_intent",
                "lifecycle_kind",
                "lifecycle_peer_param",
                "response_status",
                "in_reply_to",
            ),
        ),
        "classify_plain_event": MachineInput(facts.PlainEventClassified, ("source_name",)),
        "set_peer_ingress_context": MachineInput(facts.IngressContextSet, ("keep_alive",)),
    },
    rows=_ROWS,
)
