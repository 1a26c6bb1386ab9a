"""The six machines of peers as they are bound to a session: the state and the view of each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rookery.actors.kernel.machines import MachineBinding, SessionHost
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
from rookery.schemas.machines.views import (
    CommsDrainView,
    InboundRequestView,
    InteractionStreamView,
    OutboundRequestView,
    PeerIngressView,
    SessionContextView,
)

__all__ = ["BINDINGS"]

Params = Mapping[str, Any]
_EXCHANGE: Final = ("corr_id",)


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


BINDINGS: Final = (
    MachineBinding(INGRESS, "host", _ingress_view),
    MachineBinding(OUTBOUND, "outbound", _outbound_view, ("outbound_state",), _EXCHANGE),
    MachineBinding(INBOUND, "inbound", _inbound_view, ("inbound_state",), _EXCHANGE),
    MachineBinding(STREAMS, "streams", _stream_view, ("state",), _EXCHANGE),
    MachineBinding(DRAIN, "drain", _drain_view),
    MachineBinding(CONTEXT, "context", _context_view, ("current_watermark_ms",)),
)
