"""Views of machines: a machine's present state, as the reply to its handle.

A snapshot of the contract is sent with all its fields; other machines have a view of their own. Of
a machine with many instances the view shows the one in the request.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rookery.schemas.approvals.records import ApprovalStatus
from rookery.schemas.machines.lease import AuthLeaseSnapshot
from rookery.schemas.machines.peer import (
    DrainMode,
    InboundPeerRequestState,
    InteractionStreamState,
    OutboundPeerRequestState,
)
from rookery.schemas.machines.surface import (
    McpServerState,
    SurfaceDiagnosticSnapshot,
    SurfaceSnapshot,
)
from rookery.schemas.machines.turn import (
    RealtimeProductTurnPhase,
    RealtimeProjectionFreshness,
    RealtimeReconnectPolicy,
    TurnStateSnapshot,
)

__all__ = [
    "ApprovalView",
    "ApprovalsReply",
    "CommsDrainView",
    "InboundRequestView",
    "InteractionStreamView",
    "LeaseView",
    "McpServersView",
    "ModelRoutingView",
    "OutboundRequestView",
    "PeerIngressView",
    "PeersReply",
    "RealtimeProductTurnView",
    "RequestedEffect",
    "SessionContextView",
    "SurfaceView",
    "SurfacesReply",
    "SurfacesView",
    "TurnSlotView",
    "TurnView",
    "TurnsReply",
]


class RequestedEffect(msgspec.Struct, frozen=True, kw_only=True):
    """An effect that an accepted input requests, by the names of ``machines.md``."""

    name: str
    fields: dict[str, Any] = {}


class _View(msgspec.Struct, frozen=True, kw_only=True):
    effects: tuple[RequestedEffect, ...] | None = None
    """The input's effects, reported once: ``None`` if the command changed nothing, as a duplicate
    does."""


# --- turns ----------------------------------------------------------------------------------------


class TurnView(TurnStateSnapshot, frozen=True, kw_only=True):
    """The session's turn."""

    effects: tuple[RequestedEffect, ...] | None = None


class TurnSlotView(_View, frozen=True, kw_only=True):
    """The session's slot for a turn."""

    phase: str
    interrupt_pending: bool
    shutdown_pending: bool
    admission_drain_pending: bool
    last_public_terminal: str | None
    is_active: bool


class RealtimeProductTurnView(_View, frozen=True, kw_only=True):
    """The session's realtime turn, in its three regions."""

    phase: RealtimeProductTurnPhase
    freshness: RealtimeProjectionFreshness
    frontier_ms: int
    reconnect_policy: RealtimeReconnectPolicy
    is_in_flight: bool
    should_preempt_on_input: bool
    is_projection_stale_immediate: bool


class ModelRoutingView(_View, frozen=True, kw_only=True):
    """The session's model."""

    phase: str
    baseline_model: str | None
    baseline_realtime: bool | None
    topology_epoch: int


TurnsReply = TurnView | TurnSlotView | RealtimeProductTurnView | ModelRoutingView

# --- surfaces -------------------------------------------------------------------------------------


class SurfacesView(SurfaceDiagnosticSnapshot, frozen=True, kw_only=True):
    """The session's surfaces."""

    effects: tuple[RequestedEffect, ...] | None = None


class SurfaceView(_View, frozen=True, kw_only=True):
    """One surface: the reply to ``surface_snapshot``."""

    surface: SurfaceSnapshot | None
    """``None`` if the surface is unknown."""


class McpServersView(_View, frozen=True, kw_only=True):
    """The session's MCP servers."""

    states: dict[str, McpServerState]
    pending_server_ids: tuple[str, ...]


SurfacesReply = SurfacesView | SurfaceView | McpServersView

# --- leases ---------------------------------------------------------------------------------------


class LeaseView(AuthLeaseSnapshot, frozen=True, kw_only=True):
    """The lease of a key."""

    effects: tuple[RequestedEffect, ...] | None = None


# --- peers ----------------------------------------------------------------------------------------


class PeerIngressView(_View, frozen=True, kw_only=True):
    """State of ingress; the item's classification is among the effects."""

    host_phase: str
    silent_intents: tuple[str, ...]


class OutboundRequestView(_View, frozen=True, kw_only=True):
    """An outbound request; without a state after its end."""

    corr_id: str
    state: OutboundPeerRequestState | None


class InboundRequestView(_View, frozen=True, kw_only=True):
    """An inbound request; without a state after its response."""

    corr_id: str
    state: InboundPeerRequestState | None


class InteractionStreamView(_View, frozen=True, kw_only=True):
    """A stream of responses; without a state after its end."""

    corr_id: str
    state: InteractionStreamState | None


class CommsDrainView(_View, frozen=True, kw_only=True):
    """The task that drains the session's peer traffic."""

    phase: str
    drain_mode: DrainMode | None


class SessionContextView(_View, frozen=True, kw_only=True):
    """Time of the last change to the session's context."""

    watermark_ms: int


PeersReply = (
    PeerIngressView
    | OutboundRequestView
    | InboundRequestView
    | InteractionStreamView
    | CommsDrainView
    | SessionContextView
)

# --- approvals ------------------------------------------------------------------------------------


class ApprovalView(_View, frozen=True, kw_only=True):
    """One approval; without a status if the id is unknown. A rejected input is among the
    effects."""

    approval_id: str
    status: ApprovalStatus | None
    approve_allowed: bool
    deny_allowed: bool
    has_expiry: bool


ApprovalsReply = ApprovalView
