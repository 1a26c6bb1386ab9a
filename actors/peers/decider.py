"""Peers as the kernel sees them: the family ``peer``, its six machines, its answers.

What a session lets in, what it awaits and owes, who reads along. Envelopes are sent, received and
verified by others; here it is put on record what became of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rookery.actors.admission.host_evolution import follow
from rookery.actors.kernel.machines.decider import Part, SessionConcern, SessionState
from rookery.actors.kernel.machines.session_host import Host
from rookery.actors.peers.context_machine import CONTEXT, Context
from rookery.actors.peers.drain_machine import DRAIN, Drain
from rookery.actors.peers.ingress_machine import INGRESS
from rookery.actors.peers.interaction_machine import (
    INBOUND,
    OUTBOUND,
    InboundRequests,
    OutboundRequests,
)
from rookery.actors.peers.stream_machine import STREAMS, Streams
from rookery.schemas.codec import FactCodec
from rookery.schemas.commands import COMMANDS
from rookery.schemas.facts import peer as facts
from rookery.schemas.machines.views import (
    CommsDrainView,
    InboundRequestView,
    InteractionStreamView,
    OutboundRequestView,
    PeerIngressView,
    SessionContextView,
)

__all__ = ["PeersConcern", "SessionPeers"]

Params = Mapping[str, Any]
_EXCHANGE = ("corr_id",)


class SessionPeers(SessionState, frozen=True, kw_only=True):
    """The states of the machines; ingress has none beside the host."""

    outbound: OutboundRequests = OutboundRequests()
    inbound: InboundRequests = InboundRequests()
    streams: Streams = Streams()
    drain: Drain = Drain()
    context: Context = Context()


def _show_ingress(host: Host, _: Params) -> PeerIngressView:
    return PeerIngressView(host_phase=host.phase, silent_intents=tuple(sorted(host.silent_intents)))


def _show_outbound(requests: OutboundRequests, params: Params) -> OutboundRequestView:
    corr_id = str(params.get("corr_id", ""))
    return OutboundRequestView(corr_id=corr_id, state=requests.pending_peer_requests.get(corr_id))


def _show_inbound(requests: InboundRequests, params: Params) -> InboundRequestView:
    corr_id = str(params.get("corr_id", ""))
    return InboundRequestView(corr_id=corr_id, state=requests.inbound_peer_requests.get(corr_id))


def _show_stream(streams: Streams, params: Params) -> InteractionStreamView:
    corr_id = str(params.get("corr_id", ""))
    return InteractionStreamView(corr_id=corr_id, state=streams.streams.get(corr_id))


def _show_drain(drain: Drain, _: Params) -> CommsDrainView:
    return CommsDrainView(phase=drain.phase, drain_mode=drain.drain_mode)


def _show_context(context: Context, _: Params) -> SessionContextView:
    return SessionContextView(watermark_ms=context.last_updated_at_ms)


class PeersConcern(SessionConcern):
    """The rules of the family ``peer``."""

    family = "peer"
    verbs: Mapping[str, type[msgspec.Struct]] = {"peers": COMMANDS["peers"]}
    codec: FactCodec[facts.PeerFact] = FactCodec(facts.PEER_FACTS)
    parts = (
        Part(INGRESS, "host", _show_ingress),
        Part(OUTBOUND, "outbound", _show_outbound, ("outbound_state",), _EXCHANGE),
        Part(INBOUND, "inbound", _show_inbound, ("inbound_state",), _EXCHANGE),
        Part(STREAMS, "streams", _show_stream, ("state",), _EXCHANGE),
        Part(DRAIN, "drain", _show_drain),
        Part(CONTEXT, "context", _show_context, ("current_watermark_ms",)),
    )
    start = SessionPeers()

    def follow(self, host: Host, fact: Any) -> Host:
        return follow(host, fact)
