"""Facts of the family ``surface``: one per accepted input of a session's surfaces and MCP servers.

A fact has the input's parameters and the name of the row that fired; folding applies the row.
"""

from __future__ import annotations

from rookery.schemas.envelope import TransitionFact
from rookery.schemas.integers import Unsigned
from rookery.schemas.machines.surface import ExternalToolSurfaceFailureCause

__all__ = ["SURFACE_FACTS", "SurfaceFact"]


class _OfSurface(TransitionFact, frozen=True, kw_only=True):
    surface_id: str


class _Staged(_OfSurface, frozen=True, kw_only=True):
    now_ms: Unsigned


class _Completed(_OfSurface, frozen=True, kw_only=True):
    task_seq: Unsigned
    """Which job came back."""
    lineage_seq: Unsigned
    """Which staged intent that job was started for."""


class Registered(_OfSurface, frozen=True, kw_only=True, tag="surface.registered.v1"):
    """The surface is known, whatever becomes of it."""


class AddStaged(_Staged, frozen=True, kw_only=True, tag="surface.add_staged.v1"):
    """At a boundary the surface is to be added."""


class RemoveStaged(_Staged, frozen=True, kw_only=True, tag="surface.remove_staged.v1"):
    """At a boundary the surface is to go."""


class ReloadStaged(_Staged, frozen=True, kw_only=True, tag="surface.reload_staged.v1"):
    """At a boundary the active surface is to be loaded anew."""


class BoundaryApplied(_OfSurface, frozen=True, kw_only=True, tag="surface.boundary_applied.v1"):
    """A turn came to a boundary and took up what was staged."""

    now_ms: Unsigned
    staged_seq: Unsigned
    """Which staged intent was seen; a newer one would have refused the boundary."""
    applied_at_turn: Unsigned


class PendingSucceeded(_Completed, frozen=True, kw_only=True, tag="surface.pending_succeeded.v1"):
    """The current job came back with tools: the surface is active and visible."""


class PendingFailed(_Completed, frozen=True, kw_only=True, tag="surface.pending_failed.v1"):
    """The current job came back without: the surface is what it was before."""

    cause_in: ExternalToolSurfaceFailureCause
    """The row's ``cause``: what failed. The envelope's is what led to this fact."""


class CallStarted(_OfSurface, frozen=True, kw_only=True, tag="surface.call_started.v1"):
    """A call asked for the surface; the row says whether it counts or was rejected."""


class CallFinished(_OfSurface, frozen=True, kw_only=True, tag="surface.call_finished.v1"):
    """A call that counted is over."""


class RemovalFinalized(_OfSurface, frozen=True, kw_only=True, tag="surface.removal_finalized.v1"):
    """The removed surface has drained and is gone."""


class RemovalForced(_OfSurface, frozen=True, kw_only=True, tag="surface.removal_forced.v1"):
    """The removed surface is gone, with calls still under way."""


class SnapshotAligned(TransitionFact, frozen=True, kw_only=True, tag="surface.snapshot_aligned.v1"):
    """Whoever shows the tools shows those of this epoch."""

    epoch: Unsigned


class ShutDown(TransitionFact, frozen=True, kw_only=True, tag="surface.shut_down.v1"):
    """Nothing is staged or applied any more."""


class _OfServer(TransitionFact, frozen=True, kw_only=True):
    server_id: str


class ServerConnecting(_OfServer, frozen=True, kw_only=True, tag="surface.server_connecting.v1"):
    """A connection to the server is being made."""


class ServerConnected(_OfServer, frozen=True, kw_only=True, tag="surface.server_connected.v1"):
    """The server answers."""


class ServerFailed(_OfServer, frozen=True, kw_only=True, tag="surface.server_failed.v1"):
    """The server could not be reached, or broke."""

    error: str = ""


class ServerDisconnected(
    _OfServer, frozen=True, kw_only=True, tag="surface.server_disconnected.v1"
):
    """The connection was closed."""


class ServerReloadRequested(
    _OfServer, frozen=True, kw_only=True, tag="surface.server_reload_requested.v1"
):
    """The server is to be connected to anew."""


SurfaceFact = (
    Registered
    | AddStaged
    | RemoveStaged
    | ReloadStaged
    | BoundaryApplied
    | PendingSucceeded
    | PendingFailed
    | CallStarted
    | CallFinished
    | RemovalFinalized
    | RemovalForced
    | SnapshotAligned
    | ShutDown
    | ServerConnecting
    | ServerConnected
    | ServerFailed
    | ServerDisconnected
    | ServerReloadRequested
)
SURFACE_FACTS = SurfaceFact
