"""The handles of a session's turns: runs that a program outside executes, and spoken turns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection
from typing import Any, ClassVar, Literal

from rookery.bus.client.machines.machine_handle import Baseline, ObservedFact, SessionMachineHandle
from rookery.schemas.codec import FactCodec
from rookery.schemas.facts import turn as facts
from rookery.schemas.machines.turn import (
    AsyncOpRef,
    ContentShape,
    LlmRetrySchedule,
    RealtimeProductTurnPhase,
    RealtimeProjectionFreshness,
    RealtimeReconnectPolicy,
    TurnFailureReason,
    TurnPrimitiveKind,
    TurnTerminalOutcome,
)
from rookery.schemas.machines.views import ModelRoutingView, RealtimeProductTurnView, TurnView
from rookery.schemas.replies import SessionView

__all__ = [
    "FreshnessFact",
    "ModelRoutingHandle",
    "RealtimeProductTurnHandle",
    "SessionAdmissionHandle",
    "TurnStateHandle",
    "WorkOrigin",
]

# --- turns ----------------------------------------------------------------------------------------

# ``SessionAdmissionHandle`` and ``TurnStateHandle``: runs that a program outside executes.
#
#     admission = SessionAdmissionHandle(client, "demo")
#     await admission.accept_with_completion("input-1", False, False, True)
#     await admission.prepare(run_id)
#
#     turn = TurnStateHandle(client, "demo")
#     await turn.start_conversation_run(run_id, kind, shape, False, False, 1)
#     await turn.primitive_applied()
#     view = await turn.cancel_now()          # view.turn_phase, view.effects
#
#     view = await admission.commit("input-1", run_id)
#
# A node that executes runs takes the steps of its own runs; the program takes those of every other.


WorkOrigin = Literal["External", "Internal", "Ingest"]
"""Where a session's work comes from. Every connection from outside is ``External``."""


class SessionAdmissionHandle(SessionMachineHandle):
    """Accepts inputs and ends their runs."""

    verb: ClassVar[str] = "admission"

    async def ingest(self, runtime_id: str, work_id: str, origin: WorkOrigin) -> SessionView:
        return await self._session("ingest", runtime_id=runtime_id, work_id=work_id, origin=origin)

    async def accept_with_completion(
        self,
        input_id: str,
        request_immediate_processing: bool,
        interrupt_yielding: bool,
        wake_if_idle: bool,
    ) -> SessionView:
        return await self._session(
            "accept_with_completion",
            input_id=input_id,
            immediate=request_immediate_processing,
            interrupt_yielding=interrupt_yielding,
            wake_if_idle=wake_if_idle,
        )

    async def accept_without_wake(self, input_id: str) -> SessionView:
        return await self._session("accept_without_wake", input_id=input_id)

    async def prepare(self, run_id: str) -> SessionView:
        return await self._session("prepare", run_id=run_id)

    async def commit(self, input_id: str, run_id: str) -> SessionView:
        return await self._session("commit", input_id=input_id, run_id=run_id)

    async def recycle(self) -> SessionView:
        return await self._session("recycle")

    async def _session(self, on: str, /, **params: Any) -> SessionView:
        return await self._put(SessionView, on, **params)


class TurnStateHandle(SessionMachineHandle):
    """A step that the turn is not ready for raises ``TransitionRejected``."""

    verb: ClassVar[str] = "turns"

    # --- starts -----------------------------------------------------------------------------------

    async def start_conversation_run(  # noqa: PLR0917 - the seed's own parameters.
        self,
        run_id: str,
        primitive_kind: TurnPrimitiveKind,
        admitted_content_shape: ContentShape,
        vision_enabled: bool,
        image_tool_results_enabled: bool,
        max_extraction_retries: int,
    ) -> TurnView:
        return await self._step(
            "start_conversation_run",
            run_id=run_id,
            primitive_kind_in=primitive_kind,
            shape=admitted_content_shape,
            vision=vision_enabled,
            image_results=image_tool_results_enabled,
            max_retries=max_extraction_retries,
        )

    async def start_immediate_append(self, run_id: str) -> TurnView:
        return await self._step("start_immediate_append", run_id=run_id)

    async def start_immediate_context(self, run_id: str) -> TurnView:
        return await self._step("start_immediate_context", run_id=run_id)

    # --- steps ------------------------------------------------------------------------------------

    async def primitive_applied(self) -> TurnView:
        return await self._step("primitive_applied")

    async def llm_returned_tool_calls(self, tool_count: int) -> TurnView:
        return await self._step("llm_returned_tool_calls", tool_count=tool_count)

    async def llm_returned_terminal(self) -> TurnView:
        return await self._step("llm_returned_terminal")

    async def register_pending_ops(
        self, op_refs: Collection[AsyncOpRef], barrier_operation_ids: Collection[str]
    ) -> TurnView:
        """Register operations. A reference's own policy is ignored: the barrier lists the
        operations that the turn waits for."""
        ids = sorted({op_ref.operation_id for op_ref in op_refs})
        barrier = sorted(barrier_operation_ids)
        return await self._step("register_pending_ops", op_refs=ids, barrier_ids=barrier)

    async def tool_calls_resolved(self) -> TurnView:
        return await self._step("tool_calls_resolved")

    async def ops_barrier_satisfied(self, operation_ids: Collection[str]) -> TurnView:
        return await self._step("ops_barrier_satisfied", operation_ids=sorted(operation_ids))

    async def boundary_continue(self) -> TurnView:
        return await self._step("boundary_continue")

    async def boundary_complete(self) -> TurnView:
        return await self._step("boundary_complete")

    async def enter_extraction(self, max_retries: int) -> TurnView:
        return await self._step("enter_extraction", max_retries=max_retries)

    async def extraction_start(self) -> TurnView:
        return await self._step("extraction_start")

    async def extraction_validation_passed(self) -> TurnView:
        return await self._step("extraction_validation_passed")

    async def extraction_validation_failed(self, error: str) -> TurnView:
        return await self._step("extraction_validation_failed", error=error)

    async def extraction_failed(self, error: str) -> TurnView:
        return await self._step("extraction_failed", error=error)

    # --- failures, cancellation, limits -----------------------------------------------------------

    async def recoverable_failure(self, retry: LlmRetrySchedule) -> TurnView:
        return await self._step(
            "recoverable_failure",
            failure_kind=retry.failure.kind,
            retry_attempt=retry.plan.attempt,
            max_retries=retry.plan.max_retries,
            selected_delay_ms=retry.plan.selected_delay_ms,
            error=retry.failure.message,
        )

    async def fatal_failure(self, reason: TurnFailureReason) -> TurnView:
        return await self._step("fatal_failure", cause_kind=reason.cause_kind, error=reason.message)

    async def retry_requested(self, retry_attempt: int) -> TurnView:
        return await self._step("retry_requested", retry_attempt=retry_attempt)

    async def cancel_now(self) -> TurnView:
        return await self._step("cancel_now")

    async def request_cancel_after_boundary(self) -> TurnView:
        return await self._step("request_cancel_after_boundary")

    async def cancellation_observed(self) -> TurnView:
        return await self._step("cancellation_observed")

    async def acknowledge_terminal(self, outcome: TurnTerminalOutcome) -> TurnView:
        return await self._step("acknowledge_terminal", outcome=outcome)

    async def turn_limit_reached(self) -> TurnView:
        return await self._step("turn_limit_reached")

    async def budget_exhausted(self) -> TurnView:
        return await self._step("budget_exhausted")

    async def time_budget_exceeded(self) -> TurnView:
        return await self._step("time_budget_exceeded")

    async def force_cancel_no_run(self) -> TurnView:
        return await self._step("force_cancel_no_run")

    # --- ends -------------------------------------------------------------------------------------

    async def run_completed(self, run_id: str) -> TurnView:
        return await self._step("run_completed", run_id=run_id)

    async def run_failed(self, run_id: str, reason: TurnFailureReason) -> TurnView:
        """End the run as failed; an outcome that the turn has already is preserved, so the turn is
        read first."""
        outcome = (await self.snapshot()).terminal_outcome or TurnTerminalOutcome.FAILED
        return await self._step(
            "run_failed",
            run_id=run_id,
            outcome=outcome,
            cause_kind=reason.cause_kind,
            error=reason.message,
        )

    async def run_cancelled(self, run_id: str) -> TurnView:
        return await self._step("run_cancelled", run_id=run_id)

    async def snapshot(self) -> TurnView:
        return await self._step("snapshot")

    async def _step(self, on: str, /, **params: Any) -> TurnView:
        return await self._put(TurnView, on, **params)


# --- realtime -------------------------------------------------------------------------------------

# ``RealtimeProductTurnHandle`` and ``ModelRoutingHandle``: a session's spoken turn and its model.
#
# product = RealtimeProductTurnHandle(client, "demo")
# await product.turn_in_flight()          # False if the phase does not allow it
# async for seen in product.observe():    # a Baseline, then every ObservedFact
#     ...


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
