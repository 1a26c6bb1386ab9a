"""Facts of the family ``surface``: a session's tool surfaces and MCP servers.

The machines write one fact per accepted input: the input's parameters and the name of the row that
fired. Folding applies the row.

The catalogue of the realm has the key ``_realm``. Sessions take up what it says at the boundaries
of their turns.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from rookery.schemas.envelope import Fact, TransitionFact
from rookery.schemas.ids import REALM_KEY
from rookery.schemas.machines.surface import ExternalToolSurfaceFailureCause
from rookery.schemas.scalars import Unsigned
from rookery.schemas.surfaces import SurfaceSource

__all__ = ["REALM_KEY", "SURFACE_FACTS", "CatalogueFact", "SurfaceFact"]

# --- catalogue ------------------------------------------------------------------------------------


class _OfCatalogue(Fact, frozen=True, kw_only=True):
    surface_id: str
    sequence: Unsigned
    """Number of the change of this catalogue, from 1; the facts of one change share it."""
    listing: str
    """Digest of the JSON list of ``OfferedSurface`` after the change, in the blob store."""
    actor: str = ""


class Catalogued(_OfCatalogue, frozen=True, kw_only=True, tag="surface.catalogued.v1"):
    """The catalogue has the surface with these tools; an earlier entry is replaced."""

    origin: SurfaceSource
    tools: str
    """Digest of the JSON list of ``SurfaceTool``, in the blob store."""
    reload: bool | UnsetType = UNSET
    """An operator requested it, although nothing may have changed."""
    only: str | UnsetType = UNSET
    """The session that alone sees the surface; unset: all sessions do."""


class Dropped(_OfCatalogue, frozen=True, kw_only=True, tag="surface.dropped.v1"):
    """The catalogue no longer has the surface."""


CatalogueFact = Catalogued | Dropped

# --- machines -------------------------------------------------------------------------------------


class _OfSurface(TransitionFact, frozen=True, kw_only=True):
    surface_id: str


class _Staged(_OfSurface, frozen=True, kw_only=True):
    now_ms: Unsigned
    entry: Unsigned | UnsetType = UNSET
    """Number of the catalogue's change that is taken up; unset if a client staged it."""
    tools: str | UnsetType = UNSET
    """Digest of the tools of that entry."""


class _Completed(_OfSurface, frozen=True, kw_only=True):
    task_seq: Unsigned
    """Number of the job that ended."""
    lineage_seq: Unsigned
    """Number of the staged intent the job was started for."""


class Registered(_OfSurface, frozen=True, kw_only=True, tag="surface.registered.v1"):
    """The surface is registered."""


class AddStaged(_Staged, frozen=True, kw_only=True, tag="surface.add_staged.v1"):
    """At a boundary the surface is to be added."""


class RemoveStaged(_Staged, frozen=True, kw_only=True, tag="surface.remove_staged.v1"):
    """At a boundary the surface is to go."""


class ReloadStaged(_Staged, frozen=True, kw_only=True, tag="surface.reload_staged.v1"):
    """At a boundary the active surface is to be reloaded."""


class BoundaryApplied(_OfSurface, frozen=True, kw_only=True, tag="surface.boundary_applied.v1"):
    """A turn reached a boundary and applied the staged intent."""

    now_ms: Unsigned
    staged_seq: Unsigned
    """Number of the staged intent that was applied; a newer one would have refused the boundary."""
    applied_at_turn: Unsigned


class PendingSucceeded(_Completed, frozen=True, kw_only=True, tag="surface.pending_succeeded.v1"):
    """The current job ended with tools: the surface is active and visible."""

    tools: str | UnsetType = UNSET
    """Digest of its tools, in the blob store."""


class PendingFailed(_Completed, frozen=True, kw_only=True, tag="surface.pending_failed.v1"):
    """The current job ended without tools: the surface is as before."""

    cause_in: ExternalToolSurfaceFailureCause
    """The row's ``cause``: what failed. The envelope's ``cause`` names the causing command."""
    error: str | UnsetType = UNSET
    """Why, as a code and a text."""


class CallStarted(_OfSurface, frozen=True, kw_only=True, tag="surface.call_started.v1"):
    """A call requested the surface; the row says whether it was admitted or rejected."""


class CallFinished(_OfSurface, frozen=True, kw_only=True, tag="surface.call_finished.v1"):
    """An admitted call is over."""


class RemovalFinalized(_OfSurface, frozen=True, kw_only=True, tag="surface.removal_finalized.v1"):
    """The surface has no calls left and is removed."""


class RemovalForced(_OfSurface, frozen=True, kw_only=True, tag="surface.removal_forced.v1"):
    """The surface is removed with calls in flight."""


class SnapshotAligned(TransitionFact, frozen=True, kw_only=True, tag="surface.snapshot_aligned.v1"):
    """The visible list of tools is the one of this epoch."""

    epoch: Unsigned
    catalogued: Unsigned | UnsetType = UNSET
    """Number of the last change of the realm's catalogue that the session has taken up."""


class ShutDown(TransitionFact, frozen=True, kw_only=True, tag="surface.shut_down.v1"):
    """The surface set is shut down: intents are neither staged nor applied."""


class _OfServer(TransitionFact, frozen=True, kw_only=True):
    server_id: str


class ServerConnecting(_OfServer, frozen=True, kw_only=True, tag="surface.server_connecting.v1"):
    """A connection to the server is being made."""


class ServerConnected(_OfServer, frozen=True, kw_only=True, tag="surface.server_connected.v1"):
    """The server answers."""


class ServerFailed(_OfServer, frozen=True, kw_only=True, tag="surface.server_failed.v1"):
    """The server is unreachable, or failed."""

    error: str = ""


class ServerDisconnected(
    _OfServer, frozen=True, kw_only=True, tag="surface.server_disconnected.v1"
):
    """The connection was closed."""


class ServerReloadRequested(
    _OfServer, frozen=True, kw_only=True, tag="surface.server_reload_requested.v1"
):
    """The server is to be reconnected."""


SurfaceFact = (
    Catalogued
    | Dropped
    | Registered
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
