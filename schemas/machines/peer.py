"""Peers as they travel: what they send each other, how it is classed, how far an exchange has come.

Words and records are the seed's (``machines.md``, section 2); cases without a wire form of their
own stand under their name. What follows from them is for the concern ``peers`` to say.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

from rookery.schemas.enums import Variant

__all__ = [
    "SUPERVISOR_BRIDGE_INTENT",
    "DrainExitReason",
    "DrainMode",
    "InboundPeerRequestState",
    "InteractionStreamState",
    "OutboundPeerRequestState",
    "PeerIngressAck",
    "PeerIngressAdmission",
    "PeerIngressAuthDecision",
    "PeerIngressClassification",
    "PeerIngressEnvelopeFacts",
    "PeerIngressEnvelopeKind",
    "PeerIngressKind",
    "PeerIngressLifecycle",
    "PeerIngressMessage",
    "PeerIngressPlainEventFacts",
    "PeerIngressRequest",
    "PeerIngressResponse",
    "PeerInputClass",
    "PeerLifecycleKind",
    "PeerResponseProgressProjectionPhase",
    "PeerResponseTerminalProjectionStatus",
    "PeerTerminalDisposition",
    "ResponseStatus",
    "TerminalityClass",
]

SUPERVISOR_BRIDGE_INTENT: Final = "supervisor.bridge"
"""The one request whose sender the transport need not trust."""


# --- how exchanges stand --------------------------------------------------------------------------


class DrainMode(StrEnum):
    """For how long the task that drains a session's peer traffic is kept."""

    TIMED = "Timed"
    ATTACHED_SESSION = "AttachedSession"
    PERSISTENT_HOST = "PersistentHost"


class DrainExitReason(StrEnum):
    """Why the draining task ended."""

    IDLE_TIMEOUT = "IdleTimeout"
    DISMISSED = "Dismissed"
    FAILED = "Failed"
    ABORTED = "Aborted"
    SESSION_SHUTDOWN = "SessionShutdown"


class OutboundPeerRequestState(StrEnum):
    """How far a request of ours has come; the last three are told and then forgotten."""

    SENT = "Sent"
    ACCEPTED_PROGRESS = "AcceptedProgress"
    COMPLETED = "Completed"
    FAILED = "Failed"
    TIMED_OUT = "TimedOut"

    @property
    def is_terminal(self) -> bool:
        return self not in (
            OutboundPeerRequestState.SENT,
            OutboundPeerRequestState.ACCEPTED_PROGRESS,
        )


class InboundPeerRequestState(StrEnum):
    """How far a peer's request to us has come; the last is told and then forgotten."""

    RECEIVED = "Received"
    REPLIED = "Replied"

    @property
    def is_terminal(self) -> bool:
        return self is InboundPeerRequestState.REPLIED


class InteractionStreamState(StrEnum):
    """How far a stream of answers has come; all but the first two are told and then forgotten."""

    RESERVED = "Reserved"
    ATTACHED = "Attached"
    COMPLETED = "Completed"
    EXPIRED = "Expired"
    CLOSED_EARLY = "ClosedEarly"
    ABANDONED = "Abandoned"
    """HEAD's."""

    @property
    def is_terminal(self) -> bool:
        return self not in (InteractionStreamState.RESERVED, InteractionStreamState.ATTACHED)


class PeerTerminalDisposition(StrEnum):
    """How a terminal answer leaves a request."""

    COMPLETED = "Completed"
    FAILED = "Failed"


# --- what peers send ------------------------------------------------------------------------------


class PeerLifecycleKind(Variant):
    """What befell a peer. As the intent of a request it means the same."""

    PEER_ADDED = "mob.peer_added"
    PEER_RETIRED = "mob.peer_retired"
    PEER_UNWIRED = "mob.peer_unwired"


class TerminalityClass(StrEnum):
    """Whether an answer is the last one, and which."""

    PROGRESS = "Progress"
    TERMINAL_COMPLETED = "TerminalCompleted"
    TERMINAL_FAILED = "TerminalFailed"


class ResponseStatus(Variant):
    """What an answer says of the request it answers."""

    ACCEPTED = "accepted"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def terminality(self) -> TerminalityClass:
        return _TERMINALITY[self]


_TERMINALITY: Final = dict(zip(ResponseStatus, TerminalityClass, strict=True))


class PeerIngressEnvelopeKind(StrEnum):
    """What an envelope is, before anybody has classed it."""

    MESSAGE = "Message"
    REQUEST = "Request"
    LIFECYCLE = "Lifecycle"
    RESPONSE = "Response"
    ACK = "Ack"


class _EnvelopeKind(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What an envelope holds, by its kind."""


class PeerIngressMessage(_EnvelopeKind, frozen=True, kw_only=True, tag="Message"):
    """Words that ask for nothing."""

    body: str


class PeerIngressRequest(_EnvelopeKind, frozen=True, kw_only=True, tag="Request"):
    """Something is asked of us; the envelope's item id is what an answer refers to."""

    intent: str
    params: Any = None


class PeerIngressLifecycle(_EnvelopeKind, frozen=True, kw_only=True, tag="Lifecycle"):
    """Something befell a peer: ``params["peer"]``, or else the sender."""

    kind: PeerLifecycleKind
    params: Any = None


class PeerIngressResponse(_EnvelopeKind, frozen=True, kw_only=True, tag="Response"):
    """An answer to a request of ours."""

    in_reply_to: str
    status: ResponseStatus
    result: Any = None


class PeerIngressAck(_EnvelopeKind, frozen=True, kw_only=True, tag="Ack"):
    """The request of ours has arrived."""

    in_reply_to: str


class PeerIngressEnvelopeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All that classification knows of an envelope."""

    item_id: str
    from_peer: str
    """The sender's label for people; it proves nothing."""
    from_peer_id: str
    """The sender's id, a UUID."""
    kind: (
        PeerIngressMessage
        | PeerIngressRequest
        | PeerIngressLifecycle
        | PeerIngressResponse
        | PeerIngressAck
    )


class PeerIngressPlainEventFacts(msgspec.Struct, frozen=True, kw_only=True):
    """An event of the outside world, sent by no peer."""

    source_name: str
    body: str = ""


# --- how it is classed ----------------------------------------------------------------------------


class PeerInputClass(StrEnum):
    """What an item is to the session it came to."""

    ACTIONABLE_MESSAGE = "ActionableMessage"
    ACTIONABLE_REQUEST = "ActionableRequest"
    RESPONSE_PROGRESS = "ResponseProgress"
    RESPONSE_TERMINAL = "ResponseTerminal"
    PEER_LIFECYCLE_ADDED = "PeerLifecycleAdded"
    PEER_LIFECYCLE_RETIRED = "PeerLifecycleRetired"
    PEER_LIFECYCLE_UNWIRED = "PeerLifecycleUnwired"
    PEER_LIFECYCLE_KICKOFF_FAILED = "PeerLifecycleKickoffFailed"
    PEER_LIFECYCLE_KICKOFF_CANCELLED = "PeerLifecycleKickoffCancelled"
    """In the seed's vocabulary, as the one before; no rule says it."""
    SILENT_REQUEST = "SilentRequest"
    ACK = "Ack"
    PLAIN_EVENT = "PlainEvent"

    @property
    def is_actionable(self) -> bool:
        """Whether somebody has to act on it."""
        return self not in _INFORMATIONAL


_INFORMATIONAL: Final = (
    PeerInputClass.PEER_LIFECYCLE_ADDED,
    PeerInputClass.PEER_LIFECYCLE_RETIRED,
    PeerInputClass.PEER_LIFECYCLE_UNWIRED,
    PeerInputClass.SILENT_REQUEST,
    PeerInputClass.ACK,
)


class PeerIngressKind(StrEnum):
    """What an item counts as; notices of a peer's life count as requests."""

    MESSAGE = "Message"
    REQUEST = "Request"
    RESPONSE = "Response"
    ACK = "Ack"
    PLAIN_EVENT = "PlainEvent"


class PeerIngressAuthDecision(StrEnum):
    """Whether the transport has to trust the sender."""

    REQUIRED = "Required"
    SUPERVISOR_BRIDGE_EXEMPT = "SupervisorBridgeExempt"


class PeerIngressClassification(msgspec.Struct, frozen=True, kw_only=True):
    """What classification found."""

    input_class: PeerInputClass = msgspec.field(name="class")
    kind: PeerIngressKind
    auth: PeerIngressAuthDecision
    lifecycle_kind: PeerLifecycleKind | None = None
    response_terminality: TerminalityClass | None = None


class PeerIngressAdmission(msgspec.Struct, frozen=True, kw_only=True):
    """An item that was let in."""

    classification: PeerIngressClassification
    lifecycle_peer: str | None = None
    """Whom a notice is about."""
    request_id: str | None = None
    """The request it is, or answers."""
    rendered_text: str = ""
    """The item for the session's conversation; a notice has none."""


# --- how answers are shown ------------------------------------------------------------------------


class PeerResponseProgressProjectionPhase(Variant):
    """How far a peer says it has come."""

    ACCEPTED = "accepted"
    IN_PROGRESS = "in_progress"
    PARTIAL_RESULT = "partial_result"


class PeerResponseTerminalProjectionStatus(Variant):
    """How a peer says it ended."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
