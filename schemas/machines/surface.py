"""Tool surfaces as they travel: the words of their machine, and what is told of them.

The cases without a wire form of their own stand under their name. The rules are
``actors/surfaces``'.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rookery.schemas.enums import Variant

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
    """After a shutdown nothing is staged or applied; what runs may still come to its end."""

    OPERATING = "Operating"
    SHUTDOWN = "Shutdown"


class ExternalToolSurfaceBaseState(StrEnum):
    """How far a surface has come."""

    ABSENT = "Absent"
    ACTIVE = "Active"
    REMOVING = "Removing"
    """Hidden, and draining: calls under way may finish, new ones are rejected."""
    REMOVED = "Removed"


class ExternalToolSurfacePendingOp(StrEnum):
    """The job that was started for a surface and has not come back."""

    NONE = "None"
    ADD = "Add"
    RELOAD = "Reload"


class ExternalToolSurfaceStagedOp(StrEnum):
    """The intent that waits for a boundary."""

    NONE = "None"
    ADD = "Add"
    REMOVE = "Remove"
    RELOAD = "Reload"


class ExternalToolSurfaceDeltaOperation(StrEnum):
    """What a change to a surface is about."""

    NONE = "None"
    ADD = "Add"
    REMOVE = "Remove"
    RELOAD = "Reload"


class ExternalToolSurfaceDeltaPhase(StrEnum):
    """How far a change has come."""

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
    """Where the connection to an MCP server stands."""

    PENDING_CONNECT = "PendingConnect"
    CONNECTED = "Connected"
    FAILED = "Failed"
    DISCONNECTED = "Disconnected"


class SurfaceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One surface as it stands."""

    surface_id: str
    base_state: ExternalToolSurfaceBaseState | None = None
    pending_op: ExternalToolSurfacePendingOp = ExternalToolSurfacePendingOp.NONE
    staged_op: ExternalToolSurfaceStagedOp = ExternalToolSurfaceStagedOp.NONE
    staged_intent_sequence: int | None = None
    pending_task_sequence: int | None = None
    """Of the current job; 0 once it came back, ``None`` if there never was one."""
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
    """The known surfaces, by their ids."""
