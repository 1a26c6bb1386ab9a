"""What the machines of a concern answer: where the one that was asked stands now.

The seed's snapshots are answered with all their fields; machines without one have a view of their
own. Where a machine keeps many instances, the answer is of the one that was meant.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rookery.schemas.approvals.lifecycle import ApprovalStatus
from rookery.schemas.machines.lease import AuthLeaseSnapshot
from rookery.schemas.machines.peer import (
    DrainMode,
    InboundPeerRequestState,
    InteractionStreamState,
    OutboundPeerRequestState,
)
from rookery.schemas.machines.surface import McpServerState, SurfaceDiagnosticSnapshot
from rookery.schemas.machines.turn import TurnStateSnapshot

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
    "SurfacesReply",
    "SurfacesView",
    "TurnSlotView",
    "TurnView",
    "TurnsReply",
]


class RequestedEffect(msgspec.Struct, frozen=True, kw_only=True):
    """What an accepted input asks of the world, by the names of ``machines.md``."""

    name: str
    fields: dict[str, Any] = {}


class _View(msgspec.Struct, frozen=True, kw_only=True):
    effects: tuple[RequestedEffect, ...] | None = None
    """What the input asks for. It is said once: ``None`` where the command changed nothing just
    now, above all because it is a repeat."""


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

    phase: str
    freshness: str
    frontier_ms: int
    reconnect_policy: str
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


class McpServersView(_View, frozen=True, kw_only=True):
    """The session's MCP servers."""

    states: dict[str, McpServerState]
    pending_server_ids: tuple[str, ...]


SurfacesReply = SurfacesView | McpServersView

# --- leases ---------------------------------------------------------------------------------------


class LeaseView(AuthLeaseSnapshot, frozen=True, kw_only=True):
    """The lease of a key."""

    effects: tuple[RequestedEffect, ...] | None = None


# --- peers ----------------------------------------------------------------------------------------


class PeerIngressView(_View, frozen=True, kw_only=True):
    """What the session lets in depends on; how the item was classed is among the effects."""

    host_phase: str
    silent_intents: tuple[str, ...]


class OutboundRequestView(_View, frozen=True, kw_only=True):
    """A request of ours; without a state once it has ended."""

    corr_id: str
    state: OutboundPeerRequestState | None


class InboundRequestView(_View, frozen=True, kw_only=True):
    """A request to us; without a state once it was answered."""

    corr_id: str
    state: InboundPeerRequestState | None


class InteractionStreamView(_View, frozen=True, kw_only=True):
    """A stream of answers; without a state once it has ended."""

    corr_id: str
    state: InteractionStreamState | None


class CommsDrainView(_View, frozen=True, kw_only=True):
    """The task that drains the session's peer traffic."""

    phase: str
    drain_mode: DrainMode | None


class SessionContextView(_View, frozen=True, kw_only=True):
    """When the session's context was last changed."""

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
    """One approval; without a status if there is none of the id. That an input came to nothing is
    among the effects."""

    approval_id: str
    status: ApprovalStatus | None
    approve_allowed: bool
    deny_allowed: bool
    has_expiry: bool


ApprovalsReply = ApprovalView
