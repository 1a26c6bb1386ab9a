"""The surfaces of a session as its turns see them: what a run may see when it starts, and which
surfaces take no calls any more.

A run sees the realm's catalogue as its node has it, without what the session is removing. The
session takes the catalogue up at the boundaries of its turns; a removal that it has applied refuses
the next call, whatever the run saw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from immutables import Map
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.kernel import Effect
from rookery.actors.messages import TakeUpSurfaces
from rookery.actors.tools.state import CallPhase, SessionCalls
from rookery.schemas.calls import WAITING_FOR_TASK, RunEnvironment
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import surface as facts
from rookery.schemas.surfaces import LOCAL

if TYPE_CHECKING:
    from rookery.actors.turns.state import SessionTurns

__all__ = [
    "RunSurfaces",
    "calls_in_flight",
    "closed_to",
    "evolve_surfaces",
    "sees_functions",
    "surfaces_at_start",
    "take_up_effects",
]

DRAINING: Final = "SURFACE_DRAINING"
UNAVAILABLE: Final = "SURFACE_UNAVAILABLE"
_DRAINS: Final = "ApplyBoundaryRemoveDraining"
_STAGED: Final = (facts.AddStaged, facts.ReloadStaged, facts.RemoveStaged)


class RunSurfaces(msgspec.Struct, frozen=True, kw_only=True):
    """From the session's facts about surfaces."""

    catalogued: int = 0
    """The last change of the realm's catalogue that the session has taken up."""
    staged: frozenset[str] = frozenset()
    """Surfaces that the next boundary changes."""
    closed: Map[str, str] = Map()
    """By surface that takes no calls of this run: the code of the refusal."""
    by_mention: bool = False
    """Whether the guest of the session gets only the names of tools that its programs mention. A
    session whose programs had all of them keeps them: its functions may use any."""

    @property
    def at_start(self) -> RunSurfaces:
        """For a new run: the surfaces that were removed before are not what it sees."""
        if UNAVAILABLE not in self.closed.values():
            return self
        draining = {name: code for name, code in self.closed.items() if code == DRAINING}
        return replace(self, closed=Map(draining))

    def after_start(self, environment: RunEnvironment | UnsetType) -> RunSurfaces:
        """After the start of a run with this environment."""
        state = self.at_start
        visible = UNSET if environment is UNSET else environment.surfaces
        if visible is UNSET or visible.by_mention is state.by_mention:
            return state
        return replace(state, by_mention=visible.by_mention)


def evolve_surfaces(state: RunSurfaces, fact: Any) -> RunSurfaces:
    """Fold one fact of the family ``surface``."""
    if isinstance(fact, _STAGED):
        return replace(state, staged=state.staged | {fact.surface_id})
    match fact:
        case facts.BoundaryApplied(surface_id=name):
            closed = state.closed.set(name, DRAINING) if fact.row == _DRAINS else state.closed
            return replace(state, staged=state.staged - {name}, closed=closed)
        case facts.RemovalFinalized(surface_id=name) | facts.RemovalForced(surface_id=name):
            return replace(state, closed=state.closed.set(name, UNAVAILABLE))
        case facts.PendingSucceeded(surface_id=name) if name in state.closed:
            return replace(state, closed=state.closed.delete(name))
        case facts.SnapshotAligned(catalogued=int(catalogued)):
            return replace(state, catalogued=catalogued)
    return state


def take_up_effects(state: SessionTurns, fact: Fact) -> Sequence[Effect]:
    """At a boundary of the active run: let the session take up a changed catalogue, if it is behind
    the one that its run sees, or if it has staged a change."""
    if state.driving is None:
        return ()
    visible, taken = state.driving.offer.surfaces, state.surfaces
    is_behind = visible is not UNSET and visible.catalogued > taken.catalogued
    if not (is_behind or taken.staged):
        return ()
    boundary = state.turn.boundary_count
    return (TakeUpSurfaces(key=f"surfaces/{fact.id}", session=fact.session, boundary=boundary),)


def surfaces_at_start(
    environment: RunEnvironment, state: RunSurfaces, is_function: Callable[[str], bool]
) -> RunEnvironment:
    """The environment of a run that starts: without the surfaces that its session removes.
    ``is_function``: whether a tool of the environment is of the surface ``local``."""
    visible = environment.surfaces
    if visible is UNSET:
        return environment
    without = {*visible.without, *state.at_start.closed}
    seen = replace(
        visible,
        without=tuple(sorted(without)),
        by_mention=state.by_mention or not state.catalogued,
    )
    tools = environment.tools
    if LOCAL in without:
        tools = tuple(tool for tool in tools if not is_function(tool.name))
    return replace(environment, surfaces=seen, tools=tools)


def closed_to(environment: RunEnvironment | None, state: RunSurfaces) -> Mapping[str, str]:
    """By surface that takes no calls of the run: the code of the refusal. A run that started
    without the functions of its node never has them."""
    visible = UNSET if environment is None else environment.surfaces
    if visible is UNSET or LOCAL not in visible.without or LOCAL in state.closed:
        return state.closed
    return state.closed.set(LOCAL, UNAVAILABLE)


def sees_functions(environment: RunEnvironment, is_function: Callable[[str], bool]) -> bool:
    """Whether the run started with functions of its node."""
    return any(is_function(tool.name) for tool in environment.tools)


def calls_in_flight(calls: SessionCalls) -> Mapping[str, int]:
    """By surface: the calls that were begun and have no outcome."""
    found: dict[str, int] = {}
    for call in calls.calls.values():
        if call.phase is CallPhase.INTENDED or call.is_awaited(WAITING_FOR_TASK):
            found[call.surface] = found.get(call.surface, 0) + 1
    return found
