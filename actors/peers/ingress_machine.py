"""peer_ingress: what an item that came from outside is to a session, before anybody acts on it.

The phase is the host's and no row changes anything; what is refused is not let in. Whether a
sender is trusted is the transport's to find out, here it is only said whether it must be. What
becomes of an item that was let in, and how the session reads it, is ``admitted``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rookery.actors.kernel.machines.machine import Input, Machine, Row, RowEffect
from rookery.actors.kernel.machines.session_host import (
    ATTACHED,
    LIVE,
    RUNNING,
    Host,
    HostPhase,
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

__all__ = ["INGRESS", "PeerIngressClassified"]

MESSAGE, REQUEST, LIFECYCLE, RESPONSE, ACK = PeerIngressEnvelopeKind
NOTICES = {
    "Added": (PeerLifecycleKind.PEER_ADDED, PeerInputClass.PEER_LIFECYCLE_ADDED),
    "Retired": (PeerLifecycleKind.PEER_RETIRED, PeerInputClass.PEER_LIFECYCLE_RETIRED),
    "Unwired": (PeerLifecycleKind.PEER_UNWIRED, PeerInputClass.PEER_LIFECYCLE_UNWIRED),
}
ANSWERS = {
    ResponseStatus.ACCEPTED: PeerInputClass.RESPONSE_PROGRESS,
    ResponseStatus.COMPLETED: PeerInputClass.RESPONSE_TERMINAL,
    ResponseStatus.FAILED: PeerInputClass.RESPONSE_TERMINAL,
}
RESERVED_INTENTS = frozenset([SUPERVISOR_BRIDGE_INTENT, *PeerLifecycleKind])
"""Requests with these intents are classed by rows of their own."""


# --- effects --------------------------------------------------------------------------------------


class EnqueueClassifiedEntry(RowEffect, frozen=True, kw_only=True):
    """The item is to wait for the session."""


class PeerIngressClassified(RowEffect, frozen=True, kw_only=True):
    """The item is this."""

    cls: PeerInputClass
    kind: PeerIngressKind
    auth: PeerIngressAuthDecision = PeerIngressAuthDecision.REQUIRED
    lifecycle_kind: PeerLifecycleKind | None = None
    lifecycle_peer: str | None = None
    request_id: str | None = None
    response_terminality: TerminalityClass | None = None


Effects = tuple[RowEffect | Callable[[Host, Any], RowEffect], ...]
ENQUEUE = EnqueueClassifiedEntry()


def request(
    cls: PeerInputClass, auth: PeerIngressAuthDecision = PeerIngressAuthDecision.REQUIRED
) -> Effects:
    def classified(_: Host, asked: facts.EnvelopeClassified) -> RowEffect:
        return PeerIngressClassified(
            cls=cls, kind=PeerIngressKind.REQUEST, auth=auth, request_id=asked.item_id
        )

    return (ENQUEUE, classified)


def notice(cls: PeerInputClass, kind: PeerLifecycleKind) -> Effects:
    """Only where it came as a request does it have an id to refer to."""

    def classified(_: Host, asked: facts.EnvelopeClassified) -> RowEffect:
        return PeerIngressClassified(
            cls=cls,
            kind=PeerIngressKind.REQUEST,
            lifecycle_kind=kind,
            lifecycle_peer=asked.lifecycle_peer_param or asked.from_peer,
            request_id=asked.item_id if asked.envelope_kind is REQUEST else None,
        )

    return (ENQUEUE, classified)


def answer(cls: PeerInputClass, terminality: TerminalityClass) -> Effects:
    def classified(_: Host, asked: facts.EnvelopeClassified) -> RowEffect:
        return PeerIngressClassified(
            cls=cls,
            kind=PeerIngressKind.RESPONSE,
            request_id=asked.in_reply_to,
            response_terminality=terminality,
        )

    return (ENQUEUE, classified)


def acknowledged(_: Host, asked: facts.EnvelopeClassified) -> RowEffect:
    return PeerIngressClassified(
        cls=PeerInputClass.ACK, kind=PeerIngressKind.ACK, request_id=asked.in_reply_to
    )


SAID = PeerIngressClassified(cls=PeerInputClass.ACTIONABLE_MESSAGE, kind=PeerIngressKind.MESSAGE)
HAPPENED = PeerIngressClassified(cls=PeerInputClass.PLAIN_EVENT, kind=PeerIngressKind.PLAIN_EVENT)
EXEMPT = PeerIngressAuthDecision.SUPERVISOR_BRIDGE_EXEMPT


# --- when rows hold -------------------------------------------------------------------------------

When = Callable[[Host, facts.EnvelopeClassified], bool]


def listening(host: Host, _: Any = None) -> bool:
    return host.phase in (ATTACHED, RUNNING) and session_registered(host)


def requested(intent: str) -> When:
    return lambda h, a: a.envelope_kind is REQUEST and a.request_intent == intent and listening(h)


def befell(kind: PeerLifecycleKind) -> When:
    return lambda h, a: a.envelope_kind is LIFECYCLE and a.lifecycle_kind is kind and listening(h)


def answered(status: ResponseStatus) -> When:
    return lambda h, a: a.envelope_kind is RESPONSE and a.response_status is status and listening(h)


def bridged(*, silent: bool) -> When:
    return lambda h, a: (
        a.envelope_kind is REQUEST
        and a.request_intent == SUPERVISOR_BRIDGE_INTENT
        and (a.request_intent in h.silent_intents) is silent
        and listening(h)
    )


def ordinary(*, silent: bool) -> When:
    return lambda h, a: (
        a.envelope_kind is REQUEST
        and a.request_intent not in RESERVED_INTENTS
        and (a.request_intent in h.silent_intents) is silent
        and listening(h)
    )


# --- the machine ----------------------------------------------------------------------------------

_ENVELOPE = "classify_external_envelope"

# fmt: off
_ROWS = (
    Row("EnvelopeMessage", _ENVELOPE,
        lambda h, a: a.envelope_kind is MESSAGE and listening(h),
        effects=(ENQUEUE, SAID)),
    *(Row(f"EnvelopeRequestPeer{word}", _ENVELOPE, requested(kind), effects=notice(cls, kind))
      for word, (kind, cls) in NOTICES.items()),
    Row("EnvelopeRequestSupervisorSilent", _ENVELOPE, bridged(silent=True),
        effects=request(PeerInputClass.SILENT_REQUEST, EXEMPT)),
    Row("EnvelopeRequestSilent", _ENVELOPE, ordinary(silent=True),
        effects=request(PeerInputClass.SILENT_REQUEST)),
    Row("EnvelopeRequestSupervisor", _ENVELOPE, bridged(silent=False),
        effects=request(PeerInputClass.ACTIONABLE_REQUEST, EXEMPT)),
    Row("EnvelopeRequestActionable", _ENVELOPE, ordinary(silent=False),
        effects=request(PeerInputClass.ACTIONABLE_REQUEST)),
    *(Row(f"EnvelopeLifecycle{word}", _ENVELOPE, befell(kind), effects=notice(cls, kind))
      for word, (kind, cls) in NOTICES.items()),
    *(Row(f"EnvelopeResponse{status.variant}", _ENVELOPE, answered(status),
          effects=answer(cls, status.terminality))
      for status, cls in ANSWERS.items()),
    Row("EnvelopeAck", _ENVELOPE,
        lambda h, a: a.envelope_kind is ACK and listening(h),
        effects=(ENQUEUE, acknowledged)),
    Row("PlainEvent", "classify_plain_event", listening,
        effects=(ENQUEUE, HAPPENED)),
    Row("SetPeerIngressContext", "set_peer_ingress_context",
        lambda h, _: h.phase in LIVE and session_registered(h)),
)
# fmt: on

INGRESS = Machine(
    "peer_ingress",
    handle="PeerCommsHandle",
    phases=tuple(HostPhase),
    initial=Host(),
    inputs={
        _ENVELOPE: Input(
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
        "classify_plain_event": Input(facts.PlainEventClassified, ("source_name",)),
        "set_peer_ingress_context": Input(facts.IngressContextSet, ("keep_alive",)),
    },
    rows=_ROWS,
)
