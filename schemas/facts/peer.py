"""Facts of the family ``peer``: the messages between a session and its peers.

The machines write one fact per accepted input: the input's parameters and the name of the row that
fired. Folding applies the row. Facts hold no contents of envelopes and no times of the exchanges.
"""

from __future__ import annotations

from rookery.schemas.envelope import TransitionFact
from rookery.schemas.machines.peer import (
    DrainExitReason,
    DrainMode,
    PeerIngressEnvelopeKind,
    PeerLifecycleKind,
    PeerTerminalDisposition,
    ResponseStatus,
)
from rookery.schemas.scalars import Unsigned

__all__ = ["PEER_FACTS", "PeerFact"]


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


class PlainEventClassified(
    TransitionFact, frozen=True, kw_only=True, tag="peer.plain_event_classified.v1"
):
    """An event from outside was accepted."""

    source_name: str


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


class ResponseProgressed(_OfExchange, frozen=True, kw_only=True, tag="peer.response_progressed.v1"):
    """The peer is working on the request."""


class ResponseEnded(_OfExchange, frozen=True, kw_only=True, tag="peer.response_ended.v1"):
    """The peer sent its last response."""

    disposition: PeerTerminalDisposition


class RequestTimedOut(_OfExchange, frozen=True, kw_only=True, tag="peer.request_timed_out.v1"):
    """The session stopped waiting for the response."""


class RequestSendFailed(_OfExchange, frozen=True, kw_only=True, tag="peer.request_send_failed.v1"):
    """The request could not be sent."""


class ResponseRejected(_OfExchange, frozen=True, kw_only=True, tag="peer.response_rejected.v1"):
    """An untrusted response arrived; the exchange is over."""


class RequestReceived(_OfExchange, frozen=True, kw_only=True, tag="peer.request_received.v1"):
    """A peer sent a request and waits for a response."""


class ResponseReplied(_OfExchange, frozen=True, kw_only=True, tag="peer.response_replied.v1"):
    """The peer has its response."""


# --- streams of responses -------------------------------------------------------------------------


class StreamReserved(_OfExchange, frozen=True, kw_only=True, tag="peer.stream_reserved.v1"):
    """A reader announced itself for the stream of responses."""


class StreamAttached(_OfExchange, frozen=True, kw_only=True, tag="peer.stream_attached.v1"):
    """The reader is attached."""


class StreamCompleted(_OfExchange, frozen=True, kw_only=True, tag="peer.stream_completed.v1"):
    """The reader has the last response."""


class StreamExpired(_OfExchange, frozen=True, kw_only=True, tag="peer.stream_expired.v1"):
    """The reader did not attach in time."""


class StreamClosedEarly(_OfExchange, frozen=True, kw_only=True, tag="peer.stream_closed_early.v1"):
    """The reader left before the last answer."""


class StreamAbandoned(_OfExchange, frozen=True, kw_only=True, tag="peer.stream_abandoned.v1"):
    """The stream was abandoned, read or not."""

    reason: str = ""


# --- the context's watermark ----------------------------------------------------------------------


class ContextAdvanced(TransitionFact, frozen=True, kw_only=True, tag="peer.context_advanced.v1"):
    """The session's context changed at this time, later than at any change before."""

    updated_at_ms: Unsigned


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
    | ResponseReplied
    | StreamReserved
    | StreamAttached
    | StreamCompleted
    | StreamExpired
    | StreamClosedEarly
    | StreamAbandoned
    | ContextAdvanced
)
PEER_FACTS = PeerFact
