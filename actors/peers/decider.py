"""The decider of the family ``peer``: binds its six machines to the session.

The machines record what a session admits, which answers it awaits and owes, and its streams. Other
code sends, receives and verifies envelopes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rookery.actors.admission import evolve_host
from rookery.actors.kernel.machines import (
    MachineBinding,
    SessionHost,
    SessionMachineDecider,
    SessionMachineState,
)
from rookery.actors.peers.context_machine import CONTEXT, SessionContext
from rookery.actors.peers.drain_machine import DRAIN, CommsDrain
from rookery.actors.peers.ingress_machine import INGRESS
from rookery.actors.peers.interaction_machine import (
    INBOUND,
    OUTBOUND,
    InboundRequests,
    OutboundRequests,
)
from rookery.actors.peers.stream_machine import STREAMS, InteractionStreams
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

__all__ = ["PeersDecider", "SessionPeers"]

Params = Mapping[str, Any]
_EXCHANGE = ("corr_id",)


class SessionPeers(SessionMachineState, frozen=True, kw_only=True):
    """The states of the machines; ingress only uses the host."""

    outbound: OutboundRequests = OutboundRequests()
    inbound: InboundRequests = InboundRequests()
    streams: InteractionStreams = InteractionStreams()
    drain: CommsDrain = CommsDrain()
    context: SessionContext = SessionContext()


def _ingress_view(host: SessionHost, _: Params) -> PeerIngressView:
    return PeerIngressView(host_phase=host.phase, silent_intents=tuple(sorted(host.silent_intents)))


def _outbound_view(requests: OutboundRequests, params: Params) -> OutboundRequestView:
    corr_id = str(params.get("corr_id", ""))
    return OutboundRequestView(corr_id=corr_id, state=requests.pending_peer_requests.get(corr_id))


def _inbound_view(requests: InboundRequests, params: Params) -> InboundRequestView:
    corr_id = str(params.get("corr_id", ""))
    return InboundRequestView(corr_id=corr_id, state=requests.inbound_peer_requests.get(corr_id))


def _stream_view(streams: InteractionStreams, params: Params) -> InteractionStreamView:
    corr_id = str(params.get("corr_id", ""))
    return InteractionStreamView(corr_id=corr_id, state=streams.streams.get(corr_id))


def _drain_view(drain: CommsDrain, _: Params) -> CommsDrainView:
    return CommsDrainView(phase=drain.phase, drain_mode=drain.drain_mode)


def _context_view(context: SessionContext, _: Params) -> SessionContextView:
    return SessionContextView(watermark_ms=context.last_updated_at_ms)


class PeersDecider(SessionMachineDecider):
    """Decides the commands of the family ``peer``."""

    family = "peer"
    verbs: Mapping[str, type[msgspec.Struct]] = {"peers": COMMANDS["peers"]}
    codec: FactCodec[facts.PeerFact] = FactCodec(facts.PEER_FACTS)
    bindings = (
        MachineBinding(INGRESS, "host", _ingress_view),
        MachineBinding(OUTBOUND, "outbound", _outbound_view, ("outbound_state",), _EXCHANGE),
        MachineBinding(INBOUND, "inbound", _inbound_view, ("inbound_state",), _EXCHANGE),
        MachineBinding(STREAMS, "streams", _stream_view, ("state",), _EXCHANGE),
        MachineBinding(DRAIN, "drain", _drain_view),
        MachineBinding(CONTEXT, "context", _context_view, ("current_watermark_ms",)),
    )
    initial_state = SessionPeers()

    def evolve_host(self, host: SessionHost, fact: Any) -> SessionHost:
        return evolve_host(host, fact)
