"""The state of a session's turns and of the run they execute."""

from __future__ import annotations

from immutables import Map
from msgspec import UNSET, UnsetType

from rookery.actors.kernel.machines import SessionMachineState
from rookery.actors.tools import SessionCalls
from rookery.actors.turns.model_routing_machine import ModelRouting
from rookery.actors.turns.realtime_turn_machine import ProductTurn
from rookery.actors.turns.run_state import ActiveRun, InheritedGuest, RequestedRun
from rookery.actors.turns.slot_machine import TurnSlot
from rookery.actors.turns.transitions import Turn
from rookery.schemas.protection.rights import NO_RIGHTS, SessionRights
from rookery.schemas.run import SessionLimits

__all__ = ["SessionTurns"]


class SessionTurns(SessionMachineState, frozen=True, kw_only=True):
    """The states of the four machines."""

    turn: Turn = Turn()
    slot: TurnSlot = TurnSlot()
    product_turn: ProductTurn = ProductTurn()
    routing: ModelRouting = ModelRouting()
    direct_run_id: str | None = None
    """The run that has the session without admission knowing it."""
    asked: Map[str, RequestedRun] = Map()
    """The requests of the session's inputs by run, from admission's facts."""
    outside: frozenset[str] = frozenset()
    """The runs that a program outside began to drive, until admission has their ends."""
    driving: ActiveRun | None = None
    calls: SessionCalls = SessionCalls()
    """The calls of the session's runs."""
    older_calls: SessionCalls = SessionCalls()
    """The calls of the older entity ``tool``, from its facts."""
    runs_ended: int = 0
    """The runs of this session generation that a node executed."""
    limits: SessionLimits | UnsetType = UNSET
    """The session's limits, if they are not the defaults."""
    began: InheritedGuest | UnsetType = UNSET
    """The guest of the snapshot that this generation began with, if it did."""
    rights: SessionRights = NO_RIGHTS
    """Admission's, of this generation."""

    @property
    def known_calls(self) -> SessionCalls:
        """All calls, wherever they began."""
        older = self.older_calls
        return self.calls.with_older(older) if older.calls else self.calls
