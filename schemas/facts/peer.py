"""Facts of the family ``peer``: the messages between a session and its peers.

The machines write one fact per accepted input: the input's parameters and the name of the row that
fired. Folding applies the row.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, UnsetType

from rookery.schemas.envelope import Fact, TransitionFact
from rookery.schemas.machines.peer import (
    DrainExitReason,
    DrainMode,
    PeerIngressEnvelopeKind,
    PeerLifecycleKind,
    PeerTerminalDisposition,
    ResponseStatus,
)
from rookery.schemas.peers.envelope import (
    EnvelopeArrival,
    EnvelopeId,
    OutboxEnvelope,
    UnansweredRequest,
)
from rookery.schemas.peers.exchanges import AgentTask, PeerResponse, UnmatchedReason
from rookery.schemas.peers.gateways import PushTarget
from rookery.schemas.peers.items import DropReason, ReceivePattern, Responder
from rookery.schemas.peers.roster import Enrolment, KeyRotation, Pairing, PeerRevocation
from rookery.schemas.scalars import Unsigned

__all__ = ["PEER_FACTS", "ROSTER_CHANGES", "PeerEnd", "PeerFact", "RosterChange"]


# --- the draining task ----------------------------------------------------------------------------


class DrainEnsured(TransitionFact, frozen=True, kw_only=True, tag="peer.drain_ensured.v1"):
    """The draining task was requested, running or not."""


class DrainSpawned(TransitionFact, frozen=True, kw_only=True, tag="peer.drain_spawned.v1"):
    """The draining task is to run in this mode."""

    mode: DrainMode


class DrainStopped(TransitionFact, frozen=True, kw_only=True, tag="peer.drain_stopped.v1"):
    """The running task is to stop."""


class DrainExitedClean(TransitionFact, frozen=True, kw_only=True, tag="peer.drain_exited_clean.v1"):
    """The task ended and needs no restart."""


class DrainExitedRespawnable(
    TransitionFact, frozen=True, kw_only=True, tag="peer.drain_exited_respawnable.v1"
):
    """The task ended and should be started again."""


class DrainExitNotified(
    TransitionFact, frozen=True, kw_only=True, tag="peer.drain_exit_notified.v1"
):
    """The task reported its end and the reason."""

    reason: DrainExitReason


# --- what arrives ---------------------------------------------------------------------------------


class EnvelopeClassified(
    TransitionFact, frozen=True, kw_only=True, tag="peer.envelope_classified.v1"
):
    """A peer's envelope was accepted; the row says as which kind."""

    item_id: str
    from_peer: str
    envelope_kind: PeerIngressEnvelopeKind
    request_intent: str | None = None
    lifecycle_kind: PeerLifecycleKind | None = None
    lifecycle_peer_param: str | None = None
    """The peer the envelope names; unset if the envelope concerns its sender."""
    response_status: ResponseStatus | None = None
    in_reply_to: str | None = None
    arrival: EnvelopeArrival | UnsetType = UNSET
    """Unset where a driver outside classified it, which has verified nothing."""


class PlainEventClassified(
    TransitionFact, frozen=True, kw_only=True, tag="peer.plain_event_classified.v1"
):
    """An event from outside was accepted."""

    source_name: str
    item_id: EnvelopeId | UnsetType = UNSET
    """Its id in the queue; unset where a driver outside classified it."""
    body: Any = None


class IngressContextSet(
    TransitionFact, frozen=True, kw_only=True, tag="peer.ingress_context_set.v1"
):
    """A report whether the session stays open for its peers; it changes nothing else."""

    keep_alive: bool


# --- requests and their answers -------------------------------------------------------------------


class _OfExchange(TransitionFact, frozen=True, kw_only=True):
    corr_id: str
    """Id of the request, quoted by each of its responses."""


class RequestSent(_OfExchange, frozen=True, kw_only=True, tag="peer.request_sent.v1"):
    """The session sent a request and waits for its responses."""

    dest: str
    sent: OutboxEnvelope | UnsetType = UNSET
    """Unset where a driver outside sends."""
    intent: str = ""
    thread: str = ""
    due_at_ms: Unsigned = 0


class ResponseProgressed(_OfExchange, frozen=True, kw_only=True, tag="peer.response_progressed.v1"):
    """The peer is working on the request."""

    response: PeerResponse | UnsetType = UNSET


class ResponseEnded(_OfExchange, frozen=True, kw_only=True, tag="peer.response_ended.v1"):
    """The peer sent its last response."""

    disposition: PeerTerminalDisposition
    response: PeerResponse | UnsetType = UNSET


class RequestTimedOut(_OfExchange, frozen=True, kw_only=True, tag="peer.request_timed_out.v1"):
    """The session stopped waiting for the response."""

    abandoned: bool | UnsetType = UNSET
    """Whether its program stopped waiting, before the time was over."""
    task: AgentTask | UnsetType = UNSET
    """What an agent elsewhere does for it, and is to cancel."""


class RequestSendFailed(_OfExchange, frozen=True, kw_only=True, tag="peer.request_send_failed.v1"):
    """The request could not be sent."""

    code: str = ""
    """Why; empty where a driver outside sent it."""


class ResponseRejected(_OfExchange, frozen=True, kw_only=True, tag="peer.response_rejected.v1"):
    """An untrusted response arrived; the exchange is over."""


class RequestReceived(_OfExchange, frozen=True, kw_only=True, tag="peer.request_received.v1"):
    """A peer sent a request and waits for a response."""

    request: UnansweredRequest | UnsetType = UNSET
    """Unset where a driver outside received it."""


class ResponseReplied(_OfExchange, frozen=True, kw_only=True, tag="peer.response_replied.v1"):
    """The peer has its response."""

    sent: OutboxEnvelope | UnsetType = UNSET
    """Unset where a driver outside sends."""
    operation_id: str = ""
    """The call of a program that sent it, if one did."""


class MessageSent(Fact, frozen=True, kw_only=True, tag="peer.message_sent.v1"):
    """The session sent a message."""

    sent: OutboxEnvelope
    operation_id: str = ""
    """The call of a program that sent it, if one did."""


class ProgressSent(Fact, frozen=True, kw_only=True, tag="peer.progress_sent.v1"):
    """The session reported progress on a peer's request."""

    corr_id: str
    sent: OutboxEnvelope
    operation_id: str = ""
    """The call of a program that sent it, if one did."""


class RequestDeclined(Fact, frozen=True, kw_only=True, tag="peer.declined.v1"):
    """A verified request was not wanted; its peer is sent why."""

    corr_id: str
    code: str
    from_key: str
    """Of the peer that sent it."""
    declined_at_ms: int
    sent: OutboxEnvelope


class EnvelopesDelivered(Fact, frozen=True, kw_only=True, tag="peer.delivered.v1"):
    """The inbox of the receiver has these envelopes."""

    ids: tuple[str, ...]


class MessageFailed(Fact, frozen=True, kw_only=True, tag="peer.message_failed.v1"):
    """No inbox took an envelope before its time was over."""

    item_id: str
    code: str


class AgentCalled(Fact, frozen=True, kw_only=True, tag="peer.agent_called.v1"):
    """An envelope is about to leave for an agent elsewhere: while its outcome is not known, its
    task is looked for before the message is sent again."""

    item_id: str


class AgentTaskBegun(Fact, frozen=True, kw_only=True, tag="peer.remote_task.v1"):
    """An agent elsewhere has the request, and follows it as this task."""

    corr_id: str
    task: AgentTask


class ResponseUnmatched(Fact, frozen=True, kw_only=True, tag="peer.response_unmatched.v1"):
    """A verified response arrived that changes no request."""

    in_reply_to: str
    why: UnmatchedReason


# --- the queue of items ---------------------------------------------------------------------------


class ReceiverWaiting(Fact, frozen=True, kw_only=True, tag="peer.receiver_waiting.v1"):
    """A call of a program waits for the next item of this pattern."""

    operation_id: str
    pattern: ReceivePattern
    until_ms: Unsigned = 0
    """When it stops waiting; 0 if it waits on."""


class ReceiverLeft(Fact, frozen=True, kw_only=True, tag="peer.receiver_left.v1"):
    """The call waits no more: its time is over, or its program has dropped it."""

    operation_id: str


class ItemAssigned(Fact, frozen=True, kw_only=True, tag="peer.item_assigned.v1"):
    """The oldest item that fits goes to a receiver, or to a run of the session's responder."""

    item_id: str
    item: dict[str, Any]
    """As the program gets it."""
    operation_id: str = ""
    """The call that receives it; empty for the responder."""
    responder: Responder | UnsetType = UNSET
    """The program that handles it."""


class ItemReturned(Fact, frozen=True, kw_only=True, tag="peer.item_returned.v1"):
    """The receiver had been dropped when it got the item, which is the first of the queue again."""

    item_id: str
    operation_id: str


class ItemDropped(Fact, frozen=True, kw_only=True, tag="peer.item_dropped.v1"):
    """The session gets an item never."""

    item_id: str
    why: DropReason


class ItemHandled(Fact, frozen=True, kw_only=True, tag="peer.item_handled.v1"):
    """The responder's run for an item has ended."""

    item_id: str
    run: str
    failed: bool = False


class ResponderSet(Fact, frozen=True, kw_only=True, tag="peer.responder_set.v1"):
    """This program answers the peers of the session from now on."""

    responder: Responder


# --- streams of responses -------------------------------------------------------------------------


class StreamReserved(_OfExchange, frozen=True, kw_only=True, tag="peer.stream_reserved.v1"):
    """A reader announced itself for the stream of responses."""

    operation_id: str = ""
    """The call of a program that sent the request and will read it, if one did."""


class StreamAttached(_OfExchange, frozen=True, kw_only=True, tag="peer.stream_attached.v1"):
    """The reader is attached."""

    reader: str = ""
    """Its name; empty where a driver outside attached it."""


class StreamCompleted(_OfExchange, frozen=True, kw_only=True, tag="peer.stream_completed.v1"):
    """The reader has the last response."""


class StreamExpired(_OfExchange, frozen=True, kw_only=True, tag="peer.stream_expired.v1"):
    """The reader did not attach in time."""


class StreamClosedEarly(_OfExchange, frozen=True, kw_only=True, tag="peer.stream_closed_early.v1"):
    """The reader left before the last answer."""


class StreamAbandoned(_OfExchange, frozen=True, kw_only=True, tag="peer.stream_abandoned.v1"):
    """The stream was abandoned, read or not."""

    reason: str = ""


# --- notifications --------------------------------------------------------------------------------


class _OfPushTarget(Fact, frozen=True, kw_only=True):
    corr_id: str
    target_id: str


class PushTargetSet(_OfPushTarget, frozen=True, kw_only=True, tag="peer.push_target_set.v1"):
    """A gateway notifies this target of what happens to the request."""

    target: PushTarget


class PushTargetRemoved(
    _OfPushTarget, frozen=True, kw_only=True, tag="peer.push_target_removed.v1"
):
    """The target gets no more notifications."""


# --- the context's watermark ----------------------------------------------------------------------


class ContextAdvanced(TransitionFact, frozen=True, kw_only=True, tag="peer.context_advanced.v1"):
    """The session's context changed at this time, later than at any change before."""

    updated_at_ms: Unsigned


# --- the roster -----------------------------------------------------------------------------------


class _OfRoster(Fact, frozen=True, kw_only=True):
    """The command as it was signed; readers verify it again."""

    change: Unsigned = 0
    """Its number among the changes."""
    signed_by: str = ""
    """Id of the key of the approver that signed the change, or of the root key; empty without."""
    signature: str = ""


class Enrolled(_OfRoster, frozen=True, kw_only=True, tag="peer.enrolled.v1"):
    """The realm has this key, from which the keys of its sessions follow."""

    enrolment: Enrolment
    former_until_ms: Unsigned | UnsetType = UNSET


class Paired(_OfRoster, frozen=True, kw_only=True, tag="peer.paired.v1"):
    """A peer is trusted."""

    pairing: Pairing


class KeyRotated(_OfRoster, frozen=True, kw_only=True, tag="peer.key_rotated.v1"):
    """A paired realm, or a session of this realm, has its next key."""

    rotation: KeyRotation
    former_until_ms: Unsigned | UnsetType = UNSET


class PeerRevoked(_OfRoster, frozen=True, kw_only=True, tag="peer.revoked.v1"):
    """A peer, or one name of a paired realm, is not trusted any more."""

    revocation: PeerRevocation


class PeerExpired(Fact, frozen=True, kw_only=True, tag="peer.expired.v1"):
    """The time of a peer's entry in the roster is over. Nothing depends on this fact: who is
    trusted follows from the entry, at every moment."""

    alias: str
    expires_at_ms: Unsigned


PeerEnd = (
    ItemAssigned
    | MessageSent
    | ProgressSent
    | ReceiverLeft
    | RequestSendFailed
    | RequestTimedOut
    | ResponseEnded
    | ResponseRejected
    | ResponseReplied
    | StreamReserved
)
"""The facts of peers that end the call that they name. The id of a request is that of its call."""


RosterChange = Enrolled | Paired | KeyRotated | PeerRevoked
ROSTER_CHANGES = (Enrolled, Paired, KeyRotated, PeerRevoked)

PeerFact = (
    DrainEnsured
    | DrainSpawned
    | DrainStopped
    | DrainExitedClean
    | DrainExitedRespawnable
    | DrainExitNotified
    | EnvelopeClassified
    | PlainEventClassified
    | IngressContextSet
    | RequestSent
    | ResponseProgressed
    | ResponseEnded
    | RequestTimedOut
    | RequestSendFailed
    | ResponseRejected
    | RequestReceived
    | MessageSent
    | ProgressSent
    | RequestDeclined
    | EnvelopesDelivered
    | MessageFailed
    | AgentCalled
    | AgentTaskBegun
    | ResponseUnmatched
    | ResponseReplied
    | ReceiverWaiting
    | ReceiverLeft
    | ItemAssigned
    | ItemReturned
    | ItemDropped
    | ItemHandled
    | ResponderSet
    | StreamReserved
    | StreamAttached
    | StreamCompleted
    | StreamExpired
    | StreamClosedEarly
    | StreamAbandoned
    | PushTargetSet
    | PushTargetRemoved
    | ContextAdvanced
    | Enrolled
    | Paired
    | KeyRotated
    | PeerRevoked
    | PeerExpired
)
PEER_FACTS = PeerFact
