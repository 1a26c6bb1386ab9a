"""``RealtimeProductTurnHandle`` and ``ModelRoutingHandle``: a session's spoken turn and its model.

product = RealtimeProductTurnHandle(client, "demo")
await product.turn_in_flight()          # False if the phase does not allow it
async for seen in product.observe():    # a Baseline, then every ObservedFact
    ...
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, ClassVar

from rookery.bus.client.machines.machine_handle import Baseline, ObservedFact, SessionMachineHandle
from rookery.schemas.codec import FactCodec
from rookery.schemas.facts import turn as facts
from rookery.schemas.machines.turn import (
    RealtimeProductTurnPhase,
    RealtimeProjectionFreshness,
    RealtimeReconnectPolicy,
)
from rookery.schemas.machines.views import ModelRoutingView, RealtimeProductTurnView

__all__ = ["FreshnessFact", "ModelRoutingHandle", "RealtimeProductTurnHandle"]

FreshnessFact = (
    facts.ProjectionAdvanced
    | facts.ProjectionRefreshed
    | facts.ProjectionReset
    | facts.TurnTerminationSeen
)
"""Facts that set the freshness or its frontier, perhaps to the same value."""


class RealtimeProductTurnHandle(SessionMachineHandle):
    """Its inputs may arrive at any time: one that does not fit returns ``False``."""

    verb: ClassVar[str] = "turns"
    codec: ClassVar[FactCodec[Any]] = FactCodec(facts.RUN_FACTS)

    # --- the turn ---------------------------------------------------------------------------------

    async def turn_in_flight(self) -> bool:
        return await self._fits("turn_in_flight")

    async def turn_committed(self) -> bool:
        return await self._fits("turn_committed")

    async def output_started(self) -> bool:
        return await self._fits("output_started")

    async def turn_interrupted(self) -> bool:
        return await self._fits("turn_interrupted")

    async def turn_terminal(self) -> bool:
        return await self._fits("turn_terminal")

    async def current_phase(self) -> RealtimeProductTurnPhase:
        return (await self._read("current_phase")).phase

    async def is_in_flight(self) -> bool:
        return (await self._read("is_in_flight")).is_in_flight

    async def should_preempt_on_input(self) -> bool:
        return (await self._read("should_preempt_on_input")).should_preempt_on_input

    # --- freshness --------------------------------------------------------------------------------

    async def projection_advance_observed(self, advanced_at_ms: int) -> bool:
        return await self._fits("projection_advance_observed", advanced_at_ms=advanced_at_ms)

    async def projection_refreshed(self, observed_ms: int) -> bool:
        return await self._fits("projection_refreshed", observed_ms=observed_ms)

    async def projection_reset(self, baseline_ms: int) -> bool:
        return await self._fits("projection_reset", baseline_ms=baseline_ms)

    async def projection_freshness(self) -> RealtimeProjectionFreshness:
        return (await self._read("projection_freshness")).freshness

    async def projection_frontier_ms(self) -> int:
        return (await self._read("projection_frontier_ms")).frontier_ms

    async def is_projection_stale_immediate(self) -> bool:
        view = await self._read("is_projection_stale_immediate")
        return view.is_projection_stale_immediate

    def observe(
        self,
    ) -> AsyncGenerator[Baseline[RealtimeProductTurnView] | ObservedFact[FreshnessFact], None]:
        """The realtime turn, then every fact that sets its freshness. A fact's row says whether the
        turn was in flight. The next generation of the session begins clean."""
        return self._observe(FreshnessFact, RealtimeProductTurnView, "projection_freshness")

    # --- what a clean close means -----------------------------------------------------------------

    async def classify_client_input_submitted(self) -> bool:
        return await self._fits("classify_client_input_submitted")

    async def classify_mid_turn_activity(self) -> bool:
        return await self._fits("classify_mid_turn_activity")

    async def classify_turn_terminated(self) -> bool:
        return await self._fits("classify_turn_terminated")

    async def reconnect_policy_on_clean_close(self) -> RealtimeReconnectPolicy:
        return (await self._read("reconnect_policy_on_clean_close")).reconnect_policy

    async def _read(self, on: str) -> RealtimeProductTurnView:
        return await self._put(RealtimeProductTurnView, on)

    async def _fits(self, on: str, /, **params: Any) -> bool:
        return await self._try(RealtimeProductTurnView, on, **params)


class ModelRoutingHandle(SessionMachineHandle):
    """Sets the model of a session."""

    verb: ClassVar[str] = "turns"

    async def set_baseline(self, baseline_model: str, realtime_capable: bool) -> ModelRoutingView:
        return await self._put(
            ModelRoutingView,
            "set_baseline",
            model=baseline_model,
            realtime_capable=realtime_capable,
        )
