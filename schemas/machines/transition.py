"""What a machine answers an input with: the effects of a transition, or a rejection.

Both travel. A client of a live machine reads the effects in the view, and raises the rejection that
the machine raised. ``RequestedEffect`` is the form of an effect on the wire; those that clients act
on are typed here, and every other effect is its machine's own.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from rookery.schemas.errors import Refused
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

__all__ = [
    "CloseSurfaceConnection",
    "EmitExternalToolDelta",
    "ExternalToolSurfaceEffect",
    "PeerIngressClassified",
    "RefreshVisibleSurfaceSet",
    "RejectSurfaceCall",
    "RejectionKind",
    "ScheduleSurfaceCompletion",
    "TransitionEffect",
    "TransitionRejected",
]


class RejectionKind(StrEnum):
    """Whether the present state refuses the input (another may accept it) or no rule knows it."""

    GUARD_REJECTED = "GuardRejected"
    NO_MATCHING_TRANSITION = "NoMatchingTransition"


_CODES: Final = {
    RejectionKind.GUARD_REJECTED: "GUARD_REJECTED",
    RejectionKind.NO_MATCHING_TRANSITION: "NO_MATCHING_TRANSITION",
}


class TransitionRejected(Refused):
    """A machine rejects an input. ``str`` is the display form of the contract."""

    def __init__(
        self,
        context: str,
        reason: str,
        kind: RejectionKind = RejectionKind.NO_MATCHING_TRANSITION,
        hint: str = "",
    ) -> None:
        super().__init__(_CODES[kind], f"DSL transition rejected in {context}: {reason}", hint=hint)
        self.context, self.reason, self.kind = context, reason, kind
        self.details = {"kind": kind, "context": context, "reason": reason}

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.context, self.reason, self.kind, self.hint))


class TransitionEffect(msgspec.Struct, frozen=True, kw_only=True, tag_field="name", tag=True):
    """What a transition requests; not yet performed."""


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
