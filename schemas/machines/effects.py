"""The effects that clients of the live machines act on, typed; ``RequestedEffect`` is their form on
the wire.

Every other effect is its machine's own.
"""

from __future__ import annotations

from rookery.schemas.machines.peer import (
    PeerIngressAuthDecision,
    PeerIngressKind,
    PeerInputClass,
    PeerLifecycleKind,
    TerminalityClass,
)
from rookery.schemas.machines.surface import (
    ExternalToolSurfaceDeltaOperation,
    ExternalToolSurfaceDeltaPhase,
    ExternalToolSurfaceFailureCause,
)
from rookery.schemas.machines.transition import TransitionEffect

__all__ = [
    "CloseSurfaceConnection",
    "EmitExternalToolDelta",
    "ExternalToolSurfaceEffect",
    "PeerIngressClassified",
    "RefreshVisibleSurfaceSet",
    "RejectSurfaceCall",
    "ScheduleSurfaceCompletion",
]

# --- surfaces ---------------------------------------------------------------------------------


class ScheduleSurfaceCompletion(TransitionEffect, frozen=True, kw_only=True):
    """Start the job; its completion quotes both numbers."""

    surface_id: str
    operation: ExternalToolSurfaceDeltaOperation
    pending_task_sequence: int
    staged_intent_sequence: int
    applied_at_turn: int


class RefreshVisibleSurfaceSet(TransitionEffect, frozen=True, kw_only=True):
    """The visible tools may have changed; the consumer confirms this epoch."""

    snapshot_epoch: int


class EmitExternalToolDelta(TransitionEffect, frozen=True, kw_only=True):
    """The phase of a change of a surface."""

    surface_id: str
    operation: ExternalToolSurfaceDeltaOperation
    phase: ExternalToolSurfaceDeltaPhase
    cause: ExternalToolSurfaceFailureCause | None = None


class CloseSurfaceConnection(TransitionEffect, frozen=True, kw_only=True):
    """Close the surface's connection."""

    surface_id: str


class RejectSurfaceCall(TransitionEffect, frozen=True, kw_only=True):
    """Refuse the call."""

    surface_id: str
    cause: ExternalToolSurfaceFailureCause


ExternalToolSurfaceEffect = (
    ScheduleSurfaceCompletion
    | RefreshVisibleSurfaceSet
    | EmitExternalToolDelta
    | CloseSurfaceConnection
    | RejectSurfaceCall
)

# --- peers ------------------------------------------------------------------------------------


class PeerIngressClassified(TransitionEffect, frozen=True, kw_only=True):
    """The classification of the item."""

    cls: PeerInputClass
    kind: PeerIngressKind
    auth: PeerIngressAuthDecision = PeerIngressAuthDecision.REQUIRED
    lifecycle_kind: PeerLifecycleKind | None = None
    lifecycle_peer: str | None = None
    request_id: str | None = None
    response_terminality: TerminalityClass | None = None
