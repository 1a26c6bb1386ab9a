"""peer_interaction: our requests that await an answer, and requests of peers that we owe one.

Two machines, each a map by correlation id. An ended request is announced and dropped: its id is
free again, and late inputs are refused. The caller decides on timeouts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from immutables import Map
from msgspec.structs import replace

from rookery.actors.kernel.machines import (
    LIVE,
    Edition,
    Machine,
    MachineInput,
    SessionHost,
    Transition,
    TransitionEffect,
)
from rookery.schemas.facts import peer as facts
from rookery.schemas.machines.peer import (
    InboundPeerRequestState,
    OutboundPeerRequestState,
    PeerTerminalDisposition,
)

__all__ = [
    "ABSENT",
    "INBOUND",
    "OUTBOUND",
    "InboundRequests",
    "OutboundRequests",
    "PeerInteractionCleanup",
]

ABSENT = "absent"
SENT, ACCEPTED_PROGRESS, COMPLETED, FAILED, TIMED_OUT = OutboundPeerRequestState
RECEIVED, REPLIED = InboundPeerRequestState


# --- outbound -------------------------------------------------------------------------------------


class OutboundRequests(msgspec.Struct, frozen=True, kw_only=True):
    """Our requests without a final answer."""

    host: SessionHost = SessionHost()
    pending_peer_requests: Map[str, OutboundPeerRequestState] = Map()


class PeerInteractionStateChanged(TransitionEffect, frozen=True, kw_only=True):
    """Our request has this state."""

    corr_id: str
    new_state: OutboundPeerRequestState


class PeerInteractionCleanup(TransitionEffect, frozen=True, kw_only=True):
    """Release the resources of our request; emitted once each time it was sent."""

    corr_id: str


def is_awaited(requests: OutboundRequests, fact: Any) -> bool:
    return fact.corr_id in requests.pending_peer_requests and requests.host.phase in LIVE


def is_awaited_with(
    disposition: PeerTerminalDisposition,
) -> Callable[[OutboundRequests, Any], bool]:
    return lambda requests, fact: (
        fact.disposition is disposition
        and fact.corr_id in requests.pending_peer_requests
        and requests.host.phase in LIVE
    )


def put_outbound(state: OutboundPeerRequestState) -> Callable[[OutboundRequests, Any], Any]:
    return lambda requests, fact: replace(
        requests, pending_peer_requests=requests.pending_peer_requests.set(fact.corr_id, state)
    )


def end_outbound(requests: OutboundRequests, fact: Any) -> OutboundRequests:
    pending = requests.pending_peer_requests
    if fact.corr_id not in pending:
        return requests
    return replace(requests, pending_peer_requests=pending.delete(fact.corr_id))


def emit_outbound_state(
    state: OutboundPeerRequestState,
) -> Callable[[OutboundRequests, Any], TransitionEffect]:
    return lambda _, fact: PeerInteractionStateChanged(corr_id=fact.corr_id, new_state=state)


def emit_cleanup(_: OutboundRequests, fact: Any) -> TransitionEffect:
    return PeerInteractionCleanup(corr_id=fact.corr_id)


def only_unanswered_requests_are_kept(requests: OutboundRequests) -> bool:
    return not any(state.is_terminal for state in requests.pending_peer_requests.values())


# fmt: off
_OUTBOUND_ROWS = (
    Transition("RequestSent", "request_sent",
        lambda r, a: a.corr_id not in r.pending_peer_requests and r.host.phase in LIVE,
        put_outbound(SENT), (emit_outbound_state(SENT),)),
    Transition("ResponseProgress", "response_progress", is_awaited,
        put_outbound(ACCEPTED_PROGRESS), (emit_outbound_state(ACCEPTED_PROGRESS),)),
    Transition("ResponseTerminalCompleted", "response_terminal",
        is_awaited_with(PeerTerminalDisposition.COMPLETED),
        end_outbound, (emit_outbound_state(COMPLETED), emit_cleanup)),
    Transition("ResponseTerminalFailed", "response_terminal",
        is_awaited_with(PeerTerminalDisposition.FAILED),
        end_outbound, (emit_outbound_state(FAILED), emit_cleanup)),
    Transition("RequestTimedOut", "request_timed_out", is_awaited,
        end_outbound, (emit_outbound_state(TIMED_OUT), emit_cleanup)),
    Transition("RequestSendFailed", "request_send_failed", is_awaited,
        end_outbound, (emit_outbound_state(FAILED), emit_cleanup), Edition.HEAD),
    Transition("ResponseRejected", "response_rejected", is_awaited,
        end_outbound, (emit_outbound_state(FAILED), emit_cleanup), Edition.HEAD),
)
# fmt: on

OUTBOUND = Machine(
    "peer_interaction_outbound",
    handle="PeerInteractionHandle",
    phases=(ABSENT, SENT, ACCEPTED_PROGRESS),
    initial=OutboundRequests(),
    inputs={
        "request_sent": MachineInput(facts.RequestSent, ("corr_id", "dest")),
        "response_progress": MachineInput(facts.ResponseProgressed, ("corr_id",)),
        "response_terminal": MachineInput(facts.ResponseEnded, ("corr_id", "disposition")),
        "request_timed_out": MachineInput(facts.RequestTimedOut, ("corr_id",)),
        "request_send_failed": MachineInput(facts.RequestSendFailed, ("corr_id",)),
        "response_rejected": MachineInput(facts.ResponseRejected, ("corr_id",)),
    },
    rows=_OUTBOUND_ROWS,
    invariants=(only_unanswered_requests_are_kept,),
    phase=lambda requests, fact: requests.pending_peer_requests.get(fact.corr_id, ABSENT),
    host_phase=lambda requests: requests.host.phase,
)


# --- inbound --------------------------------------------------------------------------------------


class InboundRequests(msgspec.Struct, frozen=True, kw_only=True):
    """Peers' requests without our answer."""

    host: SessionHost = SessionHost()
    inbound_peer_requests: Map[str, InboundPeerRequestState] = Map()


class InboundPeerInteractionStateChanged(TransitionEffect, frozen=True, kw_only=True):
    """The peer's request has this state."""

    corr_id: str
    new_state: InboundPeerRequestState


def receive(requests: InboundRequests, fact: facts.RequestReceived) -> InboundRequests:
    received = requests.inbound_peer_requests.set(fact.corr_id, RECEIVED)
    return replace(requests, inbound_peer_requests=received)


def reply(requests: InboundRequests, fact: facts.ResponseReplied) -> InboundRequests:
    received = requests.inbound_peer_requests
    if fact.corr_id not in received:
        return requests
    return replace(requests, inbound_peer_requests=received.delete(fact.corr_id))


def emit_inbound_state(
    state: InboundPeerRequestState,
) -> Callable[[InboundRequests, Any], TransitionEffect]:
    return lambda _, fact: InboundPeerInteractionStateChanged(corr_id=fact.corr_id, new_state=state)


def only_unreplied_requests_are_kept(requests: InboundRequests) -> bool:
    return not any(state.is_terminal for state in requests.inbound_peer_requests.values())


# fmt: off
_INBOUND_ROWS = (
    Transition("RequestReceived", "request_received",
        lambda r, a: a.corr_id not in r.inbound_peer_requests and r.host.phase in LIVE,
        receive, (emit_inbound_state(RECEIVED),)),
    Transition("ResponseReplied", "response_replied",
        lambda r, a: a.corr_id in r.inbound_peer_requests and r.host.phase in LIVE,
        reply, (emit_inbound_state(REPLIED),)),
)
# fmt: on

INBOUND = Machine(
    "peer_interaction_inbound",
    handle="PeerInteractionHandle",
    phases=(ABSENT, RECEIVED),
    initial=InboundRequests(),
    inputs={
        "request_received": MachineInput(facts.RequestReceived, ("corr_id",)),
        "response_replied": MachineInput(facts.ResponseReplied, ("corr_id",)),
    },
    rows=_INBOUND_ROWS,
    invariants=(only_unreplied_requests_are_kept,),
    phase=lambda requests, fact: requests.inbound_peer_requests.get(fact.corr_id, ABSENT),
    host_phase=lambda requests: requests.host.phase,
)
