"""PeerInteractionHandle and InteractionStreamHandle: requests, answers, and streams of answers.

When an exchange ends, an observer cleans up its resources, once.
"""

from __future__ import annotations

import logging
from typing import Protocol
from uuid import UUID

from rookery.actors.kernel.machines import Authority
from rookery.actors.peers.interaction_machine import INBOUND, OUTBOUND, PeerInteractionCleanup
from rookery.actors.peers.stream_machine import STREAMS, InteractionStreamCleanup
from rookery.schemas.machines.peer import (
    InboundPeerRequestState,
    InteractionStreamState,
    OutboundPeerRequestState,
    PeerTerminalDisposition,
)

__all__ = [
    "InteractionStreamCleanupObserver",
    "InteractionStreamHandle",
    "PeerInteractionCleanupObserver",
    "PeerInteractionHandle",
]

log = logging.getLogger(__name__)


class PeerInteractionCleanupObserver(Protocol):
    """Holds resources for our requests without an answer."""

    def on_peer_interaction_cleanup(self, corr_id: str) -> None: ...


class InteractionStreamCleanupObserver(Protocol):
    """Holds resources for streams."""

    def on_interaction_stream_cleanup(self, corr_id: str) -> None: ...


class PeerInteractionHandle:
    """Open requests, ours and those of peers."""

    def __init__(self, authority: Authority | None = None) -> None:
        self._authority = authority or Authority()

    def request_sent(self, corr_id: str, to: str) -> None:
        self._authority.apply(OUTBOUND, "request_sent", {"corr_id": corr_id, "dest": to})

    def response_progress(self, corr_id: str) -> None:
        self._authority.apply(OUTBOUND, "response_progress", {"corr_id": corr_id})

    def response_terminal(self, corr_id: str, disposition: PeerTerminalDisposition) -> None:
        params = {"corr_id": corr_id, "disposition": disposition}
        self._authority.apply(OUTBOUND, "response_terminal", params)

    def request_timed_out(self, corr_id: str) -> None:
        self._authority.apply(OUTBOUND, "request_timed_out", {"corr_id": corr_id})

    def request_received(self, corr_id: str) -> None:
        self._authority.apply(INBOUND, "request_received", {"corr_id": corr_id})

    def response_replied(self, corr_id: str) -> None:
        self._authority.apply(INBOUND, "response_replied", {"corr_id": corr_id})

    def outbound_state(self, corr_id: str) -> OutboundPeerRequestState | None:
        return self._authority.read(OUTBOUND).pending_peer_requests.get(corr_id)

    def inbound_state(self, corr_id: str) -> InboundPeerRequestState | None:
        return self._authority.read(INBOUND).inbound_peer_requests.get(corr_id)

    def install_cleanup_observer(self, observer: PeerInteractionCleanupObserver) -> None:
        self._authority.install(PeerInteractionCleanup, observer, _notify_request_observer)


class InteractionStreamHandle:
    """Reserved and attached streams."""

    def __init__(self, authority: Authority | None = None) -> None:
        self._authority = authority or Authority()

    def reserved(self, corr_id: str) -> None:
        self._put("reserved", corr_id)

    def attached(self, corr_id: str) -> None:
        self._put("attached", corr_id)

    def completed(self, corr_id: str) -> None:
        self._put("completed", corr_id)

    def expired(self, corr_id: str) -> None:
        self._put("expired", corr_id)

    def closed_early(self, corr_id: str) -> None:
        self._put("closed_early", corr_id)

    def state(self, corr_id: str) -> InteractionStreamState | None:
        return self._authority.read(STREAMS).streams.get(corr_id)

    def install_cleanup_observer(self, observer: InteractionStreamCleanupObserver) -> None:
        self._authority.install(InteractionStreamCleanup, observer, _notify_stream_observer)

    def _put(self, on: str, corr_id: str) -> None:
        self._authority.apply(STREAMS, on, {"corr_id": corr_id})


def _notify_request_observer(
    observer: PeerInteractionCleanupObserver, effect: PeerInteractionCleanup
) -> None:
    if _is_uuid(effect.corr_id):
        observer.on_peer_interaction_cleanup(effect.corr_id)


def _notify_stream_observer(
    observer: InteractionStreamCleanupObserver, effect: InteractionStreamCleanup
) -> None:
    if _is_uuid(effect.corr_id):
        observer.on_interaction_stream_cleanup(effect.corr_id)


def _is_uuid(corr_id: str) -> bool:
    """Nothing is stored for an invalid correlation id."""
    try:
        UUID(corr_id)
    except ValueError:
        log.warning("cleanup skipped: invalid correlation id", extra={"corr_id": corr_id})
        return False
    return True
