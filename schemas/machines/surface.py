"""Vocabulary of the machines of tool surfaces, and their views.

A case without a wire form has its name as its word. ``actors/surfaces`` has the rules.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rookery.schemas.scalars import Variant

__all__ = [
    "ExternalToolSurfaceBaseState",
    "ExternalToolSurfaceDeltaOperation",
    "ExternalToolSurfaceDeltaPhase",
    "ExternalToolSurfaceFailureCause",
    "ExternalToolSurfaceGlobalPhase",
    "ExternalToolSurfacePendingOp",
    "ExternalToolSurfaceStagedOp",
    "McpServerState",
    "SurfaceDiagnosticSnapshot",
    "SurfaceSnapshot",
]


class ExternalToolSurfaceGlobalPhase(StrEnum):
    """After a shutdown no intent is staged or applied; calls in flight may finish."""

    OPERATING = "Operating"
    SHUTDOWN = "Shutdown"


class ExternalToolSurfaceBaseState(StrEnum):
    """State of a surface."""

    ABSENT = "Absent"
    ACTIVE = "Active"
    REMOVING = "Removing"
    """Hidden and draining: calls in flight may finish, new ones are rejected."""
    REMOVED = "Removed"


class ExternalToolSurfacePendingOp(StrEnum):
    """The job in flight for a surface."""

    NONE = "None"
    ADD = "Add"
    RELOAD = "Reload"


class ExternalToolSurfaceStagedOp(StrEnum):
    """The intent staged for the next boundary."""

    NONE = "None"
    ADD = "Add"
    REMOVE = "Remove"
    RELOAD = "Reload"


class ExternalToolSurfaceDeltaOperation(StrEnum):
    """Operation of a change to a surface."""

    NONE = "None"
    ADD = "Add"
    REMOVE = "Remove"
    RELOAD = "Reload"


class ExternalToolSurfaceDeltaPhase(StrEnum):
    """Phase of a change to a surface."""

    NONE = "None"
    PENDING = "Pending"
    APPLIED = "Applied"
    DRAINING = "Draining"
    FAILED = "Failed"
    FORCED = "Forced"


class ExternalToolSurfaceFailureCause(Variant):
    """Why a job failed, or a call was rejected."""

    PENDING_FAILED = "pending_failed"
    SURFACE_DRAINING = "surface_draining"
    SURFACE_UNAVAILABLE = "surface_unavailable"


class McpServerState(StrEnum):
    """State of the connection to an MCP server."""

    PENDING_CONNECT = "PendingConnect"
    CONNECTED = "Connected"
    FAILED = "Failed"
    DISCONNECTED = "Disconnected"


class SurfaceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One surface's present state."""

    surface_id: str
    base_state: ExternalToolSurfaceBaseState | None = None
    pending_op: ExternalToolSurfacePendingOp = ExternalToolSurfacePendingOp.NONE
    staged_op: ExternalToolSurfaceStagedOp = ExternalToolSurfaceStagedOp.NONE
    staged_intent_sequence: int | None = None
    pending_task_sequence: int | None = None
    """Sequence of the current job; 0 after its end, ``None`` if there was never one."""
    pending_lineage_sequence: int | None = None
    inflight_calls: int = 0
    last_delta_operation: ExternalToolSurfaceDeltaOperation | None = None
    last_delta_phase: ExternalToolSurfaceDeltaPhase | None = None
    removal_draining_since_ms: int | None = None
    removal_timeout_at_ms: int | None = None
    removal_applied_at_turn: int | None = None


class SurfaceDiagnosticSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """All surfaces of a session; sets are sorted."""

    surface_phase: ExternalToolSurfaceGlobalPhase
    known_surfaces: tuple[str, ...] = ()
    visible_surfaces: tuple[str, ...] = ()
    snapshot_epoch: int = 0
    snapshot_aligned_epoch: int = 0
    has_pending_or_staged: bool = False
    entries: tuple[SurfaceSnapshot, ...] = ()
    """The registered surfaces, by their ids."""
