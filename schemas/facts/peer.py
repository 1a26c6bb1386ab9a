"""Facts of the family ``peer``: one per accepted input of a session's dealings with its peers.

A fact has the input's parameters and the name of the row that fired; folding applies the row.
Contents of envelopes and the clock of the exchanges are not in them.
"""

from __future__ import annotations

from rookery.schemas.envelope import TransitionFact
from rookery.schemas.integers import Unsigned
from rookery.schemas.machines.peer import (
    DrainExitReason,
    DrainMode,
    PeerIngressEnvelopeKind,
    PeerLifecycleKind,
    PeerTerminalDisposition,
    ResponseStatus,
)

__all__ = ["PEER_FACTS", "PeerFact"]


# --- the draining task ----------------------------------------------------------------------------


class DrainEnsured(TransitionFact, frozen=True, kw_only=True, tag="peer.drain_ensured.v1"):
    """Somebody wants the draining task to run, whether or not it does."""


class DrainSpawned(TransitionFact, frozen=True, kw_only=True, tag="peer.drain_spawned.v1"):
    """The draining task is to run in this mode."""

    mode: DrainMode


class DrainStopped(TransitionFact, frozen=True, kw_only=True, tag="peer.drain_stopped.v1"):
    """The running task is not wanted any more."""


class DrainExitedClean(TransitionFact, frozen=True, kw_only=True, tag="peer.drain_exited_clean.v1"):
    """The task ended and nobody has to start it again."""


class DrainExitedRespawnable(
    TransitionFact, frozen=True, kw_only=True, tag="peer.drain_exited_respawnable.v1"
):
    """The task ended and should be started again."""


class DrainExitNotified(
    TransitionFact, frozen=True, kw_only=True, tag="peer.drain_exit_notified.v1"
):
    """The task says that it ended, and why."""

    reason: DrainExitReason


# --- what arrives ---------------------------------------------------------------------------------


class EnvelopeClassified(
    TransitionFact, frozen=True, kw_only=True, tag="peer.envelope_classified.v1"
):
    """A peer's envelope was let in; the row says as what."""

    item_id: str
    from_peer: str
    envelope_kind: PeerIngressEnvelopeKind
    request_intent: str | None = None
    lifecycle_kind: PeerLifecycleKind | None = None
    lifecycle_peer_param: str | None = None
    """Whom the envelope names; otherwise it is about its sender."""
    response_status: ResponseStatus | None = None
    in_reply_to: str | None = None


class PlainEventClassified(
    TransitionFact, frozen=True, kw_only=True, tag="peer.plain_event_classified.v1"
):
    """An event of the outside world was let in."""

    source_name: str


class IngressContextSet(
    TransitionFact, frozen=True, kw_only=True, tag="peer.ingress_context_set.v1"
):
    """Somebody said whether the session is kept for its peers; nothing follows from it."""

    keep_alive: bool


# --- requests and their answers -------------------------------------------------------------------


class _OfExchange(TransitionFact, frozen=True, kw_only=True):
    corr_id: str
    """The request's id: what every answer to it quotes."""


class RequestSent(_OfExchange, frozen=True, kw_only=True, tag="peer.request_sent.v1"):
    """A request of ours is on its way, and its answers are awaited."""

    dest: str


class ResponseProgressed(_OfExchange, frozen=True, kw_only=True, tag="peer.response_progressed.v1"):
    """The peer is at it."""


class ResponseEnded(_OfExchange, frozen=True, kw_only=True, tag="peer.response_ended.v1"):
    """The peer gave its last answer."""

    disposition: PeerTerminalDisposition


class RequestTimedOut(_OfExchange, frozen=True, kw_only=True, tag="peer.request_timed_out.v1"):
    """Nobody waits for the answer any longer."""


class RequestSendFailed(_OfExchange, frozen=True, kw_only=True, tag="peer.request_send_failed.v1"):
    """The request could not be sent after all."""


class ResponseRejected(_OfExchange, frozen=True, kw_only=True, tag="peer.response_rejected.v1"):
    """An answer came that must not be believed; there will be no other."""


class RequestReceived(_OfExchange, frozen=True, kw_only=True, tag="peer.request_received.v1"):
    """A peer asks something of us and is owed an answer."""


class ResponseReplied(_OfExchange, frozen=True, kw_only=True, tag="peer.response_replied.v1"):
    """The peer got its answer."""


# --- streams of answers ---------------------------------------------------------------------------


class StreamReserved(_OfExchange, frozen=True, kw_only=True, tag="peer.stream_reserved.v1"):
    """Somebody said they will read the answers as they come."""


class StreamAttached(_OfExchange, frozen=True, kw_only=True, tag="peer.stream_attached.v1"):
    """Somebody reads."""


class StreamCompleted(_OfExchange, frozen=True, kw_only=True, tag="peer.stream_completed.v1"):
    """The reader got the last answer."""


class StreamExpired(_OfExchange, frozen=True, kw_only=True, tag="peer.stream_expired.v1"):
    """Nobody came to read in time."""


class StreamClosedEarly(_OfExchange, frozen=True, kw_only=True, tag="peer.stream_closed_early.v1"):
    """The reader left before the last answer."""


class StreamAbandoned(_OfExchange, frozen=True, kw_only=True, tag="peer.stream_abandoned.v1"):
    """The stream was given up, read or not."""

    reason: str = ""


# --- the context's watermark ----------------------------------------------------------------------


class ContextAdvanced(TransitionFact, frozen=True, kw_only=True, tag="peer.context_advanced.v1"):
    """The session's context was changed at this time, later than ever before."""

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
