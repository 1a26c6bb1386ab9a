"""``RealtimeProductTurnHandle`` and ``ModelRoutingHandle``."""

from __future__ import annotations

from typing import Any, Protocol

from rookery.actors.kernel.machines import Authority, RejectionKind, TransitionRejected
from rookery.actors.turns.model_routing_machine import MODEL_ROUTING
from rookery.actors.turns.realtime_turn_machine import (
    PRODUCT_TURN,
    RealtimeProductTurnPhase,
    RealtimeProjectionFreshness,
    RealtimeProjectionFreshnessChanged,
    RealtimeReconnectPolicy,
)

__all__ = [
    "ModelRoutingHandle",
    "RealtimeProductTurnHandle",
    "RealtimeProjectionFreshnessObserver",
]


class RealtimeProjectionFreshnessObserver(Protocol):
    """Called when freshness or its frontier is set, also to the same value."""

    def on_realtime_projection_freshness_changed(
        self, new_freshness: RealtimeProjectionFreshness, frontier_ms: int
    ) -> None: ...


def _notify(
    observer: RealtimeProjectionFreshnessObserver, effect: RealtimeProjectionFreshnessChanged
) -> None:
    observer.on_realtime_projection_freshness_changed(effect.new_freshness, effect.frontier_ms)


class RealtimeProductTurnHandle:
    """Its inputs may arrive at any time: one that does not fit returns ``False``."""

    def __init__(self, authority: Authority | None = None) -> None:
        self._authority = authority or Authority()

    # --- the turn ---------------------------------------------------------------------------------

    def turn_in_flight(self) -> bool:
        return self._try_apply("turn_in_flight")

    def turn_committed(self) -> bool:
        return self._try_apply("turn_committed")

    def output_started(self) -> bool:
        return self._try_apply("output_started")

    def turn_interrupted(self) -> bool:
        return self._try_apply("turn_interrupted")

    def turn_terminal(self) -> bool:
        return self._try_apply("turn_terminal")

    def current_phase(self) -> RealtimeProductTurnPhase:
        return self._authority.read(PRODUCT_TURN).phase

    def is_in_flight(self) -> bool:
        return self._authority.read(PRODUCT_TURN).is_in_flight

    def should_preempt_on_input(self) -> bool:
        return self._authority.read(PRODUCT_TURN).should_preempt_on_input

    # --- freshness --------------------------------------------------------------------------------

    def projection_advance_observed(self, advanced_at_ms: int) -> bool:
        return self._try_apply("projection_advance_observed", advanced_at_ms=advanced_at_ms)

    def projection_refreshed(self, observed_ms: int) -> bool:
        return self._try_apply("projection_refreshed", observed_ms=observed_ms)

    def projection_reset(self, baseline_ms: int) -> bool:
        return self._try_apply("projection_reset", baseline_ms=baseline_ms)

    def projection_freshness(self) -> RealtimeProjectionFreshness:
        return self._authority.read(PRODUCT_TURN).freshness

    def projection_frontier_ms(self) -> int:
        return self._authority.read(PRODUCT_TURN).frontier_ms

    def is_projection_stale_immediate(self) -> bool:
        return self._authority.read(PRODUCT_TURN).is_projection_stale_immediate

    def install_projection_freshness_observer(
        self, observer: RealtimeProjectionFreshnessObserver
    ) -> None:
        self._authority.install(RealtimeProjectionFreshnessChanged, observer, _notify)

    def install_projection_freshness_observer_with_snapshot(
        self, observer: RealtimeProjectionFreshnessObserver
    ) -> tuple[RealtimeProjectionFreshness, int]:
        """The present freshness; the observer receives every later one."""
        with self._authority as authority:
            self.install_projection_freshness_observer(observer)
            turn = authority.read(PRODUCT_TURN)
            return turn.freshness, turn.frontier_ms

    # --- what a clean close means -----------------------------------------------------------------

    def classify_client_input_submitted(self) -> bool:
        return self._try_apply("classify_client_input_submitted")

    def classify_mid_turn_activity(self) -> bool:
        return self._try_apply("classify_mid_turn_activity")

    def classify_turn_terminated(self) -> bool:
        return self._try_apply("classify_turn_terminated")

    def reconnect_policy_on_clean_close(self) -> RealtimeReconnectPolicy:
        return self._authority.read(PRODUCT_TURN).reconnect_policy

    def _try_apply(self, on: str, **params: Any) -> bool:
        try:
            self._authority.apply(PRODUCT_TURN, on, params)
        except TransitionRejected as rejected:
            if rejected.kind is not RejectionKind.GUARD_REJECTED:
                raise
            return False
        return True


class ModelRoutingHandle:
    """Sets the model of a session."""

    def __init__(self, authority: Authority | None = None) -> None:
        self._authority = authority or Authority()

    def set_baseline(self, baseline_model: str, realtime_capable: bool) -> None:
        baseline = {"model": baseline_model, "realtime_capable": realtime_capable}
        self._authority.apply(MODEL_ROUTING, "set_baseline", baseline)
