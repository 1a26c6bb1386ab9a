"""``TurnStateHandle``: turn_execution as a driver uses it.

A run that the handle started directly releases its session at its end; a prepared run is committed
by the handle that prepared it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rookery.actors.admission import apply_input
from rookery.actors.kernel.machines import Authority
from rookery.actors.turns.turn_machine import TURN
from rookery.actors.turns.turn_view import close_direct_run, turn_snapshot
from rookery.schemas.machines.turn import (
    AsyncOpRef,
    ContentShape,
    LlmRetrySchedule,
    TurnFailureReason,
    TurnPrimitiveKind,
    TurnStateSnapshot,
    TurnTerminalOutcome,
)

__all__ = ["TurnStateHandle"]


class TurnStateHandle:
    """A step that the turn is not ready for raises ``TransitionRejected``."""

    def __init__(self, authority: Authority | None = None) -> None:
        self._authority = authority or Authority()

    # --- starts -----------------------------------------------------------------------------------

    def start_conversation_run(  # noqa: PLR0917 - the seed's own parameters.
        self,
        run_id: str,
        primitive_kind: TurnPrimitiveKind,
        admitted_content_shape: ContentShape,
        vision_enabled: bool,
        image_tool_results_enabled: bool,
        max_extraction_retries: int,
    ) -> None:
        self._apply(
            "start_conversation_run",
            run_id=run_id,
            primitive_kind_in=primitive_kind,
            shape=admitted_content_shape,
            vision=vision_enabled,
            image_results=image_tool_results_enabled,
            max_retries=max_extraction_retries,
        )

    def start_immediate_append(self, run_id: str) -> None:
        self._apply("start_immediate_append", run_id=run_id)

    def start_immediate_context(self, run_id: str) -> None:
        self._apply("start_immediate_context", run_id=run_id)

    # --- steps ------------------------------------------------------------------------------------

    def primitive_applied(self) -> None:
        self._apply("primitive_applied")

    def llm_returned_tool_calls(self, tool_count: int) -> None:
        self._apply("llm_returned_tool_calls", tool_count=tool_count)

    def llm_returned_terminal(self) -> None:
        self._apply("llm_returned_terminal")

    def register_pending_ops(
        self, op_refs: Collection[AsyncOpRef], barrier_operation_ids: Collection[str]
    ) -> None:
        """Register operations. A reference's own policy is ignored: the barrier lists the
        operations that the turn waits for."""
        ids = sorted({op_ref.operation_id for op_ref in op_refs})
        self._apply("register_pending_ops", op_refs=ids, barrier_ids=sorted(barrier_operation_ids))

    def tool_calls_resolved(self) -> None:
        self._apply("tool_calls_resolved")

    def ops_barrier_satisfied(self, operation_ids: Collection[str]) -> None:
        self._apply("ops_barrier_satisfied", operation_ids=sorted(operation_ids))

    def boundary_continue(self) -> None:
        self._apply("boundary_continue")

    def boundary_complete(self) -> None:
        self._apply("boundary_complete")

    def enter_extraction(self, max_retries: int) -> None:
        self._apply("enter_extraction", max_retries=max_retries)

    def extraction_start(self) -> None:
        self._apply("extraction_start")

    def extraction_validation_passed(self) -> None:
        self._apply("extraction_validation_passed")

    def extraction_validation_failed(self, error: str) -> None:
        self._apply("extraction_validation_failed", error=error)

    def extraction_failed(self, error: str) -> None:
        self._apply("extraction_failed", error=error)

    # --- failures, cancellation, limits -----------------------------------------------------------

    def recoverable_failure(self, retry: LlmRetrySchedule) -> None:
        self._apply(
            "recoverable_failure",
            failure_kind=retry.failure.kind,
            retry_attempt=retry.plan.attempt,
            max_retries=retry.plan.max_retries,
            selected_delay_ms=retry.plan.selected_delay_ms,
            error=retry.failure.message,
        )

    def fatal_failure(self, reason: TurnFailureReason) -> None:
        self._apply("fatal_failure", cause_kind=reason.cause_kind, error=reason.message)

    def retry_requested(self, retry_attempt: int) -> None:
        self._apply("retry_requested", retry_attempt=retry_attempt)

    def cancel_now(self) -> None:
        self._apply("cancel_now")

    def request_cancel_after_boundary(self) -> None:
        self._apply("request_cancel_after_boundary")

    def cancellation_observed(self) -> None:
        self._apply("cancellation_observed")

    def acknowledge_terminal(self, outcome: TurnTerminalOutcome) -> None:
        self._apply("acknowledge_terminal", outcome=outcome)

    def turn_limit_reached(self) -> None:
        self._apply("turn_limit_reached")

    def budget_exhausted(self) -> None:
        self._apply("budget_exhausted")

    def time_budget_exceeded(self) -> None:
        self._apply("time_budget_exceeded")

    def force_cancel_no_run(self) -> None:
        self._apply("force_cancel_no_run")

    # --- ends -------------------------------------------------------------------------------------

    def run_completed(self, run_id: str) -> None:
        self._end("run_completed", run_id)

    def run_failed(self, run_id: str, reason: TurnFailureReason) -> None:
        """End the run as failed; an outcome that the turn has already is preserved."""
        with self._authority:
            outcome = self._authority.read(TURN).terminal_outcome or TurnTerminalOutcome.FAILED
            self._end(
                "run_failed",
                run_id,
                apply_cause=None,
                apply_message=None,
                outcome=outcome,
                cause_kind=reason.cause_kind,
                error=reason.message,
            )

    def run_cancelled(self, run_id: str) -> None:
        self._end("run_cancelled", run_id)

    def snapshot(self) -> TurnStateSnapshot:
        return turn_snapshot(self._authority.read(TURN))

    def _apply(self, on: str, **params: Any) -> None:
        self._authority.apply(TURN, on, params)

    def _end(self, on: str, run_id: str, **params: Any) -> None:
        with self._authority as authority:
            self._apply(on, run_id=run_id, **params)
            of_input = run_id == authority.input_run_id
            command = close_direct_run(authority.host, run_id, of_input=of_input)
            if command is not None:
                authority.set_host(apply_input(authority.host, command))
