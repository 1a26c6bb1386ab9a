"""realtime_product_turn: a spoken turn as the product sees it, in three regions.

The phase is what of the turn was committed and heard. Freshness is whether the realtime side shows
the session's present state, up to a frontier in time that only grows. The policy is what a clean
close of the connection means. Freshness reads the phase once, when the session advances; the end of
a turn sets two regions; otherwise the regions are independent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from rookery.actors.kernel.machines import (
    DESTROYED,
    Machine,
    MachineInput,
    SessionHost,
    Transition,
    TransitionEffect,
    set_fields,
)
from rookery.schemas.facts import turn as facts
from rookery.schemas.machines.turn import (
    RealtimeProductTurnPhase,
    RealtimeProjectionFreshness,
    RealtimeReconnectPolicy,
)

__all__ = [
    "PRODUCT_TURN",
    "ProductTurn",
    "RealtimeProductTurnPhaseChanged",
    "RealtimeProjectionFreshnessChanged",
    "RealtimeReconnectPolicyChanged",
]


IDLE, AWAITING, COMMITTED, OUTPUT, PREEMPTIBLE = RealtimeProductTurnPhase
CLEAN, DEFERRED, IMMEDIATE = RealtimeProjectionFreshness
EXIT, REATTACH = RealtimeReconnectPolicy


class ProductTurn(msgspec.Struct, frozen=True, kw_only=True):
    """The three regions."""

    phase: RealtimeProductTurnPhase = IDLE
    freshness: RealtimeProjectionFreshness = CLEAN
    frontier_ms: int = 0
    """Clean: the time of the state shown. Stale: the time of the session's last advance."""
    reconnect_policy: RealtimeReconnectPolicy = EXIT
    host: SessionHost = SessionHost()

    @property
    def is_in_flight(self) -> bool:
        return self.phase is not IDLE

    @property
    def should_preempt_on_input(self) -> bool:
        return self.phase is PREEMPTIBLE

    @property
    def is_projection_stale_immediate(self) -> bool:
        return self.freshness is IMMEDIATE


# --- effects --------------------------------------------------------------------------------------


class RealtimeProductTurnPhaseChanged(TransitionEffect, frozen=True, kw_only=True):
    """The turn is in another phase."""

    new_phase: RealtimeProductTurnPhase


class RealtimeProjectionFreshnessChanged(TransitionEffect, frozen=True, kw_only=True):
    """Freshness or its frontier was set, perhaps to the same value."""

    new_freshness: RealtimeProjectionFreshness
    frontier_ms: int


class RealtimeReconnectPolicyChanged(TransitionEffect, frozen=True, kw_only=True):
    """A clean close now means something else."""

    new_policy: RealtimeReconnectPolicy


def freshness_changed(turn: ProductTurn, _: object) -> RealtimeProjectionFreshnessChanged:
    return RealtimeProjectionFreshnessChanged(
        new_freshness=turn.freshness, frontier_ms=turn.frontier_ms
    )


# --- rows -----------------------------------------------------------------------------------------


def reachable(turn: ProductTurn) -> bool:
    return turn.host.phase is not DESTROYED


def to_phase(
    name: str,
    on: str,
    start: tuple[RealtimeProductTurnPhase, ...],
    to: RealtimeProductTurnPhase,
) -> Transition:
    """Set the phase region."""
    return Transition(
        name,
        on,
        lambda turn, _: turn.phase in start and reachable(turn),
        set_fields(phase=to),
        (RealtimeProductTurnPhaseChanged(new_phase=to),),
    )


def mark_stale(freshness: RealtimeProjectionFreshness) -> Callable[[ProductTurn, Any], ProductTurn]:
    return lambda turn, fact: replace(turn, freshness=freshness, frontier_ms=fact.advanced_at_ms)


def refresh(turn: ProductTurn, as_of_ms: int) -> ProductTurn:
    return replace(turn, freshness=CLEAN, frontier_ms=max(turn.frontier_ms, as_of_ms))


def advances(turn: ProductTurn, fact: facts.ProjectionAdvanced) -> bool:
    """A guard: the time is later than the frontier."""
    return fact.advanced_at_ms > turn.frontier_ms and reachable(turn)


def cleans(turn: ProductTurn, as_of_ms: int) -> bool:
    """A guard: the input would change something."""
    return (turn.freshness is not CLEAN or as_of_ms > turn.frontier_ms) and reachable(turn)


def reattach_transition(name: str, on: str) -> Transition:
    return Transition(
        name,
        on,
        lambda turn, _: turn.reconnect_policy is not REATTACH and reachable(turn),
        set_fields(reconnect_policy=REATTACH),
        (RealtimeReconnectPolicyChanged(new_policy=REATTACH),),
    )


def terminate(turn: ProductTurn, _: object) -> ProductTurn:
    """A refresh postponed until after the turn is due now."""
    freshness = IMMEDIATE if turn.freshness is DEFERRED else turn.freshness
    return replace(turn, reconnect_policy=EXIT, freshness=freshness)


# --- the machine ----------------------------------------------------------------------------------

_INPUTS = {
    "turn_in_flight": MachineInput(facts.ProductTurnStarted),
    "turn_committed": MachineInput(facts.ProductTurnCommitted),
    "output_started": MachineInput(facts.ProductOutputStarted),
    "turn_interrupted": MachineInput(facts.ProductTurnInterrupted),
    "turn_terminal": MachineInput(facts.ProductTurnEnded),
    "projection_advance_observed": MachineInput(facts.ProjectionAdvanced, ("advanced_at_ms",)),
    "projection_refreshed": MachineInput(facts.ProjectionRefreshed, ("observed_ms",)),
    "projection_reset": MachineInput(facts.ProjectionReset, ("baseline_ms",)),
    "classify_client_input_submitted": MachineInput(facts.ClientInputSubmitted),
    "classify_mid_turn_activity": MachineInput(facts.MidTurnActivitySeen),
    "classify_turn_terminated": MachineInput(facts.TurnTerminationSeen),
}

# fmt: off
_TRANSITIONS = (
    to_phase("TurnInFlight", "turn_in_flight", (IDLE,), AWAITING),
    to_phase("TurnCommittedFromAwaiting", "turn_committed", (AWAITING,), COMMITTED),
    to_phase("TurnCommittedFromOutput", "turn_committed", (OUTPUT,), PREEMPTIBLE),
    to_phase("OutputStartedFromAwaiting", "output_started", (AWAITING,), OUTPUT),
    to_phase("OutputStartedFromCommitted", "output_started", (COMMITTED,), PREEMPTIBLE),
    to_phase("TurnInterruptedFromPreemptible", "turn_interrupted", (PREEMPTIBLE,), COMMITTED),
    to_phase("TurnInterruptedFromOutput", "turn_interrupted", (OUTPUT,), AWAITING),
    to_phase("TurnTerminal", "turn_terminal", (AWAITING, COMMITTED, OUTPUT, PREEMPTIBLE), IDLE),
    Transition("ProjectionAdvanceDuringTurn", "projection_advance_observed",
        lambda t, a: t.phase is not IDLE and advances(t, a),
        mark_stale(DEFERRED),
        (freshness_changed,)),
    Transition("ProjectionAdvanceWhileIdle", "projection_advance_observed",
        lambda t, a: t.phase is IDLE and advances(t, a),
        mark_stale(IMMEDIATE),
        (freshness_changed,)),
    Transition("ProjectionRefreshed", "projection_refreshed",
        lambda t, a: a.observed_ms >= t.frontier_ms and cleans(t, a.observed_ms),
        lambda t, a: refresh(t, a.observed_ms),
        (freshness_changed,)),
    Transition("ProjectionReset", "projection_reset",
        lambda t, a: cleans(t, a.baseline_ms),
        lambda t, a: refresh(t, a.baseline_ms),
        (freshness_changed,)),
    reattach_transition("ClassifyClientInputSubmitted", "classify_client_input_submitted"),
    reattach_transition("ClassifyMidTurnActivity", "classify_mid_turn_activity"),
    Transition("ClassifyTurnTerminated", "classify_turn_terminated",
        lambda t, _: reachable(t) and (t.reconnect_policy is not EXIT or t.freshness is DEFERRED),
        terminate,
        (RealtimeReconnectPolicyChanged(new_policy=EXIT), freshness_changed)),
)
# fmt: on


def something_stale_moved_on_at_some_time(turn: ProductTurn) -> bool:
    return turn.freshness is CLEAN or turn.frontier_ms > 0


PRODUCT_TURN = Machine(
    "realtime_product_turn",
    handle="RealtimeProductTurnHandle",
    phases=tuple(RealtimeProductTurnPhase),
    initial=ProductTurn(),
    inputs=_INPUTS,
    rows=_TRANSITIONS,
    invariants=(something_stale_moved_on_at_some_time,),
    host_phase=lambda turn: turn.host.phase,
)
