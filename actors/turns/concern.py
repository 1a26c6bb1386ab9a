"""Turns as the kernel sees them: the family ``turn``, its four machines, its answers.

A turn may be started for a run nobody prepared. Admission does not hear of it, so that it has the
session is kept here, beside the copy of the host: from the start, whose fact says so, to the run's
end. What drives a turn is somebody else's; here its steps are put on record one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET
from msgspec.structs import asdict, force_setattr, replace

from rookery.actors.admission.host import follow
from rookery.actors.kernel.handled import Part, SessionConcern, SessionState
from rookery.actors.kernel.host import ATTACHED, INITIALIZING, RUNNING, Host
from rookery.actors.turns.machine import TURN
from rookery.actors.turns.product_turn import PRODUCT_TURN, ProductTurn
from rookery.actors.turns.routing import MODEL_ROUTING, ModelRouting
from rookery.actors.turns.slot import SLOT, TurnSlot
from rookery.actors.turns.snapshot import snapshot
from rookery.actors.turns.state import Turn
from rookery.actors.turns.steps import bound
from rookery.schemas.answers import (
    ModelRoutingView,
    RealtimeProductTurnView,
    TurnSlotView,
    TurnView,
)
from rookery.schemas.codec import FactCodec
from rookery.schemas.commands import COMMANDS
from rookery.schemas.facts import turn as facts

__all__ = ["Turns", "TurnsConcern"]

Params = Mapping[str, Any]
Start = facts.Started | facts.ImmediateAppendStarted | facts.ImmediateContextStarted
End = facts.Completed | facts.Failed | facts.Cancelled


class Turns(SessionState, frozen=True, kw_only=True):
    """The states of the four machines."""

    turn: Turn = Turn()
    slot: TurnSlot = TurnSlot()
    product_turn: ProductTurn = ProductTurn()
    routing: ModelRouting = ModelRouting()
    direct_run_id: str | None = None
    """The run that has the session without admission's knowing."""


def _show_turn(turn: Turn, _: Params) -> TurnView:
    return TurnView(**asdict(snapshot(turn)))


def _show_slot(slot: TurnSlot, _: Params) -> TurnSlotView:
    return TurnSlotView(**asdict(slot), is_active=slot.is_active)


def _show_product_turn(turn: ProductTurn, _: Params) -> RealtimeProductTurnView:
    return RealtimeProductTurnView(
        phase=turn.phase,
        freshness=turn.freshness,
        frontier_ms=turn.frontier_ms,
        reconnect_policy=turn.reconnect_policy,
        is_in_flight=turn.is_in_flight,
        should_preempt_on_input=turn.should_preempt_on_input,
        is_projection_stale_immediate=turn.is_projection_stale_immediate,
    )


def _show_routing(routing: ModelRouting, _: Params) -> ModelRoutingView:
    return ModelRoutingView(
        phase=routing.phase,
        baseline_model=routing.baseline_model,
        baseline_realtime=routing.baseline_realtime,
        topology_epoch=routing.topology_epoch,
    )


_PRODUCT_TURN_READS = (
    "current_phase",
    "is_in_flight",
    "should_preempt_on_input",
    "projection_freshness",
    "projection_frontier_ms",
    "is_projection_stale_immediate",
    "reconnect_policy_on_clean_close",
)


class TurnsConcern(SessionConcern):
    """The rules of the family ``turn``."""

    family = "turn"
    verbs: Mapping[str, type[msgspec.Struct]] = {"turns": COMMANDS["turns"]}
    codec: FactCodec[facts.TurnFact] = FactCodec(facts.TURN_FACTS)
    parts = (
        Part(TURN, "turn", _show_turn, ("snapshot",)),
        Part(SLOT, "slot", _show_slot),
        Part(PRODUCT_TURN, "product_turn", _show_product_turn, _PRODUCT_TURN_READS),
        Part(MODEL_ROUTING, "routing", _show_routing),
    )
    start = Turns()
    fencing = (facts.Started, facts.ImmediateAppendStarted, facts.ImmediateContextStarted)

    def follow(self, host: Host, fact: Any) -> Host:
        return follow(host, fact)

    def complete(self, state: Turns, part: Part, draft: Any) -> Any:
        """The run a step belongs to; of a start, whether the run was prepared."""
        if isinstance(draft, Start):
            force_setattr(draft, "direct", bound(state.host, draft.run) is not state.host)
        elif part.machine is TURN and draft.run is UNSET:
            force_setattr(draft, "run", state.turn.host.current_run_id or UNSET)
        return super().complete(state, part, draft)

    def evolve(self, state: Turns, fact: facts.TurnFact) -> Turns:
        after: Turns = super().evolve(state, fact)
        direct = after.direct_run_id
        if isinstance(fact, Start):
            direct = fact.run if fact.direct else None
        elif isinstance(fact, End) and fact.run == direct:
            direct = None
        else:
            return after
        return self.put_at(replace(after, direct_run_id=direct), after.host)

    def put_at(self, state: Turns, host: Host) -> Turns:
        """A turn that has the session itself sees it running, for as long as it could."""
        placed: Turns = super().put_at(state, host)
        run_id = state.direct_run_id
        if run_id is None or host.phase not in (INITIALIZING, ATTACHED, RUNNING):
            return placed
        return replace(placed, turn=replace(placed.turn, host=bound(host, run_id)))
