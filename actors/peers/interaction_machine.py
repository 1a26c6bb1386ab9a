"""peer_interaction: the requests we await answers to, and those a peer awaits ours to.

Two machines, each a map by correlation id. An end is told and forgotten: the id is free again, and
what comes late for it is refused. Timing out is the caller's to decide; where a request goes, what
it says and who reads the answers is not kept here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from immutables import Map
from msgspec.structs import replace

from rookery.actors.kernel.machines.machine import Edition, Input, Machine, Row, RowEffect
from rookery.actors.kernel.machines.session_host import LIVE, Host
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
    """Our requests that have no last answer yet."""

    host: Host = Host()
    pending_peer_requests: Map[str, OutboundPeerRequestState] = Map()


class PeerInteractionStateChanged(RowEffect, frozen=True, kw_only=True):
    """Our request has come this far."""

    corr_id: str
    new_state: OutboundPeerRequestState


class PeerInteractionCleanup(RowEffect, frozen=True, kw_only=True):
    """Nobody needs what was kept for our request any more; told once for each time it was sent."""

    corr_id: str


def awaited(requests: OutboundRequests, asked: Any) -> bool:
    return asked.corr_id in requests.pending_peer_requests and requests.host.phase in LIVE


def awaited_and(disposition: PeerTerminalDisposition) -> Callable[[OutboundRequests, Any], bool]:
    return lambda requests, asked: (
        asked.disposition is disposition
        and asked.corr_id in requests.pending_peer_requests
        and requests.host.phase in LIVE
    )


def put_outbound(state: OutboundPeerRequestState) -> Callable[[OutboundRequests, Any], Any]:
    return lambda requests, asked: replace(
        requests, pending_peer_requests=requests.pending_peer_requests.set(asked.corr_id, state)
    )


def end_outbound(requests: OutboundRequests, asked: Any) -> OutboundRequests:
    pending = requests.pending_peer_requests
    if asked.corr_id not in pending:
        return requests
    return replace(requests, pending_peer_requests=pending.delete(asked.corr_id))


def tell(state: OutboundPeerRequestState) -> Callable[[OutboundRequests, Any], RowEffect]:
    return lambda _, asked: PeerInteractionStateChanged(corr_id=asked.corr_id, new_state=state)


def clean_up(_: OutboundRequests, asked: Any) -> RowEffect:
    return PeerInteractionCleanup(corr_id=asked.corr_id)


def only_unanswered_requests_are_kept(requests: OutboundRequests) -> bool:
    return not any(state.is_terminal for state in requests.pending_peer_requests.values())


# fmt: off
_OUTBOUND_ROWS = (
    Row("RequestSent", "request_sent",
        lambda r, a: a.corr_id not in r.pending_peer_requests and r.host.phase in LIVE,
        put_outbound(SENT), (tell(SENT),)),
    Row("ResponseProgress", "response_progress", awaited,
        put_outbound(ACCEPTED_PROGRESS), (tell(ACCEPTED_PROGRESS),)),
    Row("ResponseTerminalCompleted", "response_terminal",
        awaited_and(PeerTerminalDisposition.COMPLETED),
        end_outbound, (tell(COMPLETED), clean_up)),
    Row("ResponseTerminalFailed", "response_terminal",
        awaited_and(PeerTerminalDisposition.FAILED),
        end_outbound, (tell(FAILED), clean_up)),
    Row("RequestTimedOut", "request_timed_out", awaited,
        end_outbound, (tell(TIMED_OUT), clean_up)),
    Row("RequestSendFailed", "request_send_failed", awaited,
        end_outbound, (tell(FAILED), clean_up), Edition.HEAD),
    Row("ResponseRejected", "response_rejected", awaited,
        end_outbound, (tell(FAILED), clean_up), Edition.HEAD),
)
# fmt: on

OUTBOUND = Machine(
    "peer_interaction_outbound",
    handle="PeerInteractionHandle",
    phases=(ABSENT, SENT, ACCEPTED_PROGRESS),
    initial=OutboundRequests(),
    inputs={
        "request_sent": Input(facts.RequestSent, ("corr_id", "dest")),
        "response_progress": Input(facts.ResponseProgressed, ("corr_id",)),
        "response_terminal": Input(facts.ResponseEnded, ("corr_id", "disposition")),
        "request_timed_out": Input(facts.RequestTimedOut, ("corr_id",)),
        "request_send_failed": Input(facts.RequestSendFailed, ("corr_id",)),
        "response_rejected": Input(facts.ResponseRejected, ("corr_id",)),
    },
    rows=_OUTBOUND_ROWS,
    invariants=(only_unanswered_requests_are_kept,),
    phase=lambda requests, asked: requests.pending_peer_requests.get(asked.corr_id, ABSENT),
    host_phase=lambda requests: requests.host.phase,
)


# --- inbound --------------------------------------------------------------------------------------


class InboundRequests(msgspec.Struct, frozen=True, kw_only=True):
    """Peers' requests that we still owe an answer."""

    host: Host = Host()
    inbound_peer_requests: Map[str, InboundPeerRequestState] = Map()


class InboundPeerInteractionStateChanged(RowEffect, frozen=True, kw_only=True):
    """The peer's request has come this far."""

    corr_id: str
    new_state: InboundPeerRequestState


def receive(requests: InboundRequests, asked: facts.RequestReceived) -> InboundRequests:
    received = requests.inbound_peer_requests.set(asked.corr_id, RECEIVED)
    return replace(requests, inbound_peer_requests=received)


def reply(requests: InboundRequests, asked: facts.ResponseReplied) -> InboundRequests:
    received = requests.inbound_peer_requests
    if asked.corr_id not in received:
        return requests
    return replace(requests, inbound_peer_requests=received.delete(asked.corr_id))


def tell_inbound(state: InboundPeerRequestState) -> Callable[[InboundRequests, Any], RowEffect]:
    return lambda _, asked: InboundPeerInteractionStateChanged(
        corr_id=asked.corr_id, new_state=state
    )


def only_unreplied_requests_are_kept(requests: InboundRequests) -> bool:
    return not any(state.is_terminal for state in requests.inbound_peer_requests.values())


# fmt: off
_INBOUND_ROWS = (
    Row("RequestReceived", "request_received",
        lambda r, a: a.corr_id not in r.inbound_peer_requests and r.host.phase in LIVE,
        receive, (tell_inbound(RECEIVED),)),
    Row("ResponseReplied", "response_replied",
        lambda r, a: a.corr_id in r.inbound_peer_requests and r.host.phase in LIVE,
        reply, (tell_inbound(REPLIED),)),
)
# fmt: on

INBOUND = Machine(
    "peer_interaction_inbound",
    handle="PeerInteractionHandle",
    phases=(ABSENT, RECEIVED),
    initial=InboundRequests(),
    inputs={
        "request_received": Input(facts.RequestReceived, ("corr_id",)),
        "response_replied": Input(facts.ResponseReplied, ("corr_id",)),
    },
    rows=_INBOUND_ROWS,
    invariants=(only_unreplied_requests_are_kept,),
    phase=lambda requests, asked: requests.inbound_peer_requests.get(asked.corr_id, ABSENT),
    host_phase=lambda requests: requests.host.phase,
)
