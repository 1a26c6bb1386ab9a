"""The effects of the surfaces of a session, the commands of their executor, and which effects
follow from a fact. Pure.

They depend on the state, which after a crash is later than the fact: a job that has ended has no
effect any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from rookery.actors.kernel import Effect
from rookery.schemas.calls import OfferedSurface
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import surface as facts
from rookery.schemas.machines.surface import (
    ExternalToolSurfaceBaseState,
    ExternalToolSurfacePendingOp,
    McpServerState,
)

if TYPE_CHECKING:
    from rookery.actors.surfaces.state import Surfaces

__all__ = [
    "EFFECT_TYPES",
    "CompleteSurface",
    "ConnectSurface",
    "DrainSurface",
    "ReconnectServer",
    "ReportServer",
    "SettleRemoval",
    "TakeUp",
    "pending_surface_effects",
    "surface_effects",
]

_NO_JOB: Final = ExternalToolSurfacePendingOp.NONE
_REMOVING: Final = ExternalToolSurfaceBaseState.REMOVING


class ConnectSurface(Effect, frozen=True, kw_only=True):
    """Connect to the surface, and end its job by the result."""

    session: str
    surface: str
    task: int
    lineage: int


class DrainSurface(Effect, frozen=True, kw_only=True):
    """Finalize the removal when no call of the surface is in flight, or when its time is over."""

    session: str
    surface: str
    timeout_at_ms: int


class ReconnectServer(Effect, frozen=True, kw_only=True):
    """A client requested a new connection to an MCP server."""

    session: str
    server: str


# --- what is put to the actor ---------------------------------------------------------------------


class TakeUp(msgspec.Struct, frozen=True, kw_only=True):
    """Stage the session's difference to the catalogue; at a boundary, apply what is staged."""

    entries: tuple[OfferedSurface, ...]
    """Those of the catalogue that the session sees."""
    catalogued: int
    """Number of its last change."""
    boundary: int | None = None
    """The boundary's number in its turn; ``None`` between two boundaries."""
    in_flight: dict[str, int] = {}
    """By surface, the calls of the session that were begun and have no outcome."""
    without_local: int = 0
    """Number of the change that removed the surface ``local``; 0: the realm has it."""
    sees_functions: bool = False
    """Whether the run of the session started with functions of its node."""


class CompleteSurface(msgspec.Struct, frozen=True, kw_only=True):
    """End the job of a surface; a job with other numbers has ended."""

    surface: str
    task: int
    lineage: int
    error: str = ""
    """Why there is no connection; empty if there is."""
    is_server: bool = False
    """Whether it is an MCP server, whose machine learns the same."""


class ReportServer(msgspec.Struct, frozen=True, kw_only=True):
    """The connection to an MCP server that the session has taken up is in this state now."""

    surface: str
    state: McpServerState
    error: str = ""


class SettleRemoval(msgspec.Struct, frozen=True, kw_only=True):
    """Note the calls in flight of a surface that is being removed; without any it is removed."""

    surface: str
    timeout_at_ms: int
    """Of the removal; an older one has ended."""
    in_flight: int = 0


# --- effects --------------------------------------------------------------------------------------

EFFECT_TYPES: Final[frozenset[type[Fact]]] = frozenset(
    {facts.BoundaryApplied, facts.ServerReloadRequested}
)
"""The facts that ``surface_effects`` knows."""


def surface_effects(state: Surfaces, fact: Fact) -> Sequence[Effect]:
    """The effects of ``fact``; ``state``: after it, or later. The connection of a removed surface
    is the node's, which closes it when the catalogue has dropped the surface."""
    match fact:
        case facts.BoundaryApplied(surface_id=surface):
            return _effects_of(state, fact.session, surface)
        case facts.ServerReloadRequested(server_id=server):
            return (ReconnectServer(key=fact.id, session=fact.session, server=server),)
    return ()


def pending_surface_effects(state: Surfaces, session: str) -> Sequence[Effect]:
    """The effects that the state alone calls for."""
    busy = {*state.removal_timeout_at_ms, *_jobs(state)}
    return [effect for name in sorted(busy) for effect in _effects_of(state, session, name)]


def _jobs(state: Surfaces) -> list[str]:
    return [name for name, job in state.pending_op.items() if job is not _NO_JOB]


def _effects_of(state: Surfaces, session: str, surface: str) -> Sequence[Effect]:
    if state.pending_op.get(surface, _NO_JOB) is not _NO_JOB:
        task = state.pending_task_sequence[surface]
        return (
            ConnectSurface(
                key=f"{session}/{surface}/{task}",
                session=session,
                surface=surface,
                task=task,
                lineage=state.pending_lineage_sequence[surface],
            ),
        )
    if state.base_state.get(surface) is _REMOVING:
        timeout_at_ms = state.removal_timeout_at_ms[surface]
        return (
            DrainSurface(
                key=f"{session}/{surface}/{timeout_at_ms}",
                session=session,
                surface=surface,
                timeout_at_ms=timeout_at_ms,
            ),
        )
    return ()
