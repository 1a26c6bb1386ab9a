"""Vocabulary of the peer machines: envelopes, their classification, states of exchanges.

Words and records are the contract's (``machines.md``, section 2); a case without a wire form has
its name as its word. ``actors/peers`` has the rules.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final

import msgspec

from rookery.schemas.scalars import Variant

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
"""The one request that needs no trusted sender."""


# --- states of exchanges --------------------------------------------------------------------------


class DrainMode(StrEnum):
    """How long the task that drains a session's peer traffic runs."""

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
    """State of an outbound request; the last three are reported once and then removed."""

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
    """State of an inbound request; the last is reported once and then removed."""

    RECEIVED = "Received"
    REPLIED = "Replied"

    @property
    def is_terminal(self) -> bool:
        return self is InboundPeerRequestState.REPLIED


class InteractionStreamState(StrEnum):
    """State of a stream of responses; all but the first two are reported once and then removed."""

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
    """State in which a terminal response leaves its request."""

    COMPLETED = "Completed"
    FAILED = "Failed"


# --- envelopes ------------------------------------------------------------------------------------


class PeerLifecycleKind(Variant):
    """A peer's lifecycle event. As the intent of a request it means the same."""

    PEER_ADDED = "mob.peer_added"
    PEER_RETIRED = "mob.peer_retired"
    PEER_UNWIRED = "mob.peer_unwired"


class TerminalityClass(StrEnum):
    """Whether a response is the last one, and with which result."""

    PROGRESS = "Progress"
    TERMINAL_COMPLETED = "TerminalCompleted"
    TERMINAL_FAILED = "TerminalFailed"


class ResponseStatus(Variant):
    """Status of the request in a response."""

    ACCEPTED = "accepted"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def terminality(self) -> TerminalityClass:
        return _TERMINALITY[self]


_TERMINALITY: Final = dict(zip(ResponseStatus, TerminalityClass, strict=True))


class PeerIngressEnvelopeKind(StrEnum):
    """Kind of an envelope before classification."""

    MESSAGE = "Message"
    REQUEST = "Request"
    LIFECYCLE = "Lifecycle"
    RESPONSE = "Response"
    ACK = "Ack"


class _EnvelopeKind(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Content of an envelope, by its kind."""


class PeerIngressMessage(_EnvelopeKind, frozen=True, kw_only=True, tag="Message"):
    """A message without a request."""

    body: str


class PeerIngressRequest(_EnvelopeKind, frozen=True, kw_only=True, tag="Request"):
    """A request to this session; responses quote the envelope's item id."""

    intent: str
    params: Any = None


class PeerIngressLifecycle(_EnvelopeKind, frozen=True, kw_only=True, tag="Lifecycle"):
    """A lifecycle event of ``params["peer"]``, or else of the sender."""

    kind: PeerLifecycleKind
    params: Any = None


class PeerIngressResponse(_EnvelopeKind, frozen=True, kw_only=True, tag="Response"):
    """A response to a request of this session."""

    in_reply_to: str
    status: ResponseStatus
    result: Any = None


class PeerIngressAck(_EnvelopeKind, frozen=True, kw_only=True, tag="Ack"):
    """A request of this session has arrived."""

    in_reply_to: str


class PeerIngressEnvelopeFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an envelope that classification reads."""

    item_id: str
    from_peer: str
    """The sender's display label, unauthenticated."""
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
    """An event from outside, without a sending peer."""

    source_name: str
    body: str = ""


# --- classification -------------------------------------------------------------------------------


class PeerInputClass(StrEnum):
    """Class of an item for the receiving session."""

    ACTIONABLE_MESSAGE = "ActionableMessage"
    ACTIONABLE_REQUEST = "ActionableRequest"
    RESPONSE_PROGRESS = "ResponseProgress"
    RESPONSE_TERMINAL = "ResponseTerminal"
    PEER_LIFECYCLE_ADDED = "PeerLifecycleAdded"
    PEER_LIFECYCLE_RETIRED = "PeerLifecycleRetired"
    PEER_LIFECYCLE_UNWIRED = "PeerLifecycleUnwired"
    PEER_LIFECYCLE_KICKOFF_FAILED = "PeerLifecycleKickoffFailed"
    PEER_LIFECYCLE_KICKOFF_CANCELLED = "PeerLifecycleKickoffCancelled"
    """Part of the contract, as the previous word; no rule produces it."""
    SILENT_REQUEST = "SilentRequest"
    ACK = "Ack"
    PLAIN_EVENT = "PlainEvent"

    @property
    def is_actionable(self) -> bool:
        """Whether the item requires an action."""
        return self not in _INFORMATIONAL


_INFORMATIONAL: Final = (
    PeerInputClass.PEER_LIFECYCLE_ADDED,
    PeerInputClass.PEER_LIFECYCLE_RETIRED,
    PeerInputClass.PEER_LIFECYCLE_UNWIRED,
    PeerInputClass.SILENT_REQUEST,
    PeerInputClass.ACK,
)


class PeerIngressKind(StrEnum):
    """Ingress kind of an item; lifecycle notices count as requests."""

    MESSAGE = "Message"
    REQUEST = "Request"
    RESPONSE = "Response"
    ACK = "Ack"
    PLAIN_EVENT = "PlainEvent"


class PeerIngressAuthDecision(StrEnum):
    """Whether the transport must trust the sender."""

    REQUIRED = "Required"
    SUPERVISOR_BRIDGE_EXEMPT = "SupervisorBridgeExempt"


class PeerIngressClassification(msgspec.Struct, frozen=True, kw_only=True):
    """Result of classification."""

    input_class: PeerInputClass = msgspec.field(name="class")
    kind: PeerIngressKind
    auth: PeerIngressAuthDecision
    lifecycle_kind: PeerLifecycleKind | None = None
    response_terminality: TerminalityClass | None = None


class PeerIngressAdmission(msgspec.Struct, frozen=True, kw_only=True):
    """An accepted item."""

    classification: PeerIngressClassification
    lifecycle_peer: str | None = None
    """The peer a notice concerns."""
    request_id: str | None = None
    """Id of the request that the item is or responds to."""
    rendered_text: str = ""
    """Text of the item in the session's conversation; empty for a notice."""


# --- rendering of responses -----------------------------------------------------------------------


class PeerResponseProgressProjectionPhase(Variant):
    """A peer's progress on a request."""

    ACCEPTED = "accepted"
    IN_PROGRESS = "in_progress"
    PARTIAL_RESULT = "partial_result"


class PeerResponseTerminalProjectionStatus(Variant):
    """A peer's result of a request."""

    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
