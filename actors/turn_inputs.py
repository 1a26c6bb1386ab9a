"""The inputs of a turn, as drivers give them: of a run that starts, of its calls, and of its end.

A driver returns results and calls; these functions say which inputs of the turn machine record
them, and which result a run has that was cancelled, refused or ended by a client. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.messages import ActiveRunView, RecordStep, TurnInput
from rookery.schemas.calls import RequestedCall
from rookery.schemas.errors import CodedError
from rookery.schemas.machines.turn import (
    ContentShape,
    TurnPhase,
    TurnPrimitiveKind,
    TurnTerminalCauseKind,
    TurnTerminalOutcome,
)
from rookery.schemas.run import ErrorObject, RunOutput, RunResult, RunStatus

__all__ = [
    "cancelled_result",
    "end_run",
    "end_unexecuted",
    "external_result",
    "refused_result",
    "request_calls",
    "resolve_calls",
    "run_failed",
    "start_params",
]


def start_params(run_id: str, *, context: bool = False) -> dict[str, Any]:
    """The parameters of a turn that a program or a model drives; a program counts as conversation.
    ``context``: of the conversation there is new context, too."""
    return {
        "run_id": run_id,
        "primitive_kind_in": TurnPrimitiveKind.CONVERSATION_TURN,
        "shape": ContentShape.of_staged(conversation=True, context=context).variant,
        "vision": False,
        "image_results": False,
        "max_retries": 0,
    }


# --- steps ----------------------------------------------------------------------------------------


def resolve_calls(
    calls: tuple[RequestedCall, ...], given: tuple[str, ...] | UnsetType = UNSET
) -> tuple[TurnInput, ...]:
    """The inputs for the end of the last calls and for the boundary. If the program continued with
    the outcomes of ``given`` only, those become the barrier."""
    if not calls:
        return ()
    operations = sorted(call.operation_id for call in calls)
    inputs: list[TurnInput] = []
    if given is not UNSET:
        inputs, operations = [_register_ops(operations, given)], sorted(given)
    if operations:
        inputs.append(TurnInput("ops_barrier_satisfied", {"operation_ids": operations}))
    return (*inputs, TurnInput("tool_calls_resolved"), TurnInput("boundary_continue"))


def request_calls(
    calls: Sequence[RequestedCall],
    barrier: Iterable[str],
    under_way: Iterable[str],
    wanted: int | None = None,
) -> tuple[TurnInput, ...]:
    """The inputs for new calls; the driver waits for the operations of the barrier. ``wanted``:
    their number with those that are refused, if any are."""
    inputs = (_register_ops(under_way, barrier),)
    if not calls:
        return inputs
    count = len(calls) if wanted is None else wanted
    return (TurnInput("llm_returned_tool_calls", {"tool_count": count}), *inputs)


def _register_ops(operations: Iterable[str], barrier: Iterable[str]) -> TurnInput:
    params = {"op_refs": sorted(operations), "barrier_ids": sorted(barrier)}
    return TurnInput("register_pending_ops", params)


def end_run(run_id: str, result: RunResult) -> tuple[TurnInput, ...]:
    """The inputs by which a result ends the run."""
    if result.status is RunStatus.OK:
        return (
            TurnInput("llm_returned_terminal"),
            TurnInput("boundary_complete"),
            TurnInput("run_completed", {"run_id": run_id}),
        )
    error = result.error or ErrorObject(code="RUNTIME_ERROR", message=result.status)
    text = f"{error.code}: {error.message}"
    if result.status is RunStatus.CANCELLED:
        return (
            TurnInput("cancel_now"),
            *_CANCELLED,
            TurnInput("run_cancelled", {"run_id": run_id}),
        )
    outcome, cause = TurnTerminalOutcome.FAILED, _CAUSES.get(error.code, _FATAL)
    if result.status is RunStatus.TIMEOUT:
        failing = TurnInput("time_budget_exceeded")
        outcome = TurnTerminalOutcome.TIME_BUDGET_EXCEEDED
        cause = TurnTerminalCauseKind.TIME_BUDGET_EXCEEDED
    elif error.code == "EXTERNAL_CALLS_EXCEEDED":
        failing = TurnInput("budget_exhausted")
        outcome = TurnTerminalOutcome.BUDGET_EXHAUSTED
        cause = TurnTerminalCauseKind.BUDGET_EXHAUSTED
    else:
        failing = TurnInput("fatal_failure", {"cause_kind": cause.variant, "error": text})
    return (failing, run_failed(run_id, outcome, cause, text))


def run_failed(
    run_id: str, outcome: TurnTerminalOutcome, cause: TurnTerminalCauseKind, text: str
) -> TurnInput:
    """The input by which a run ends as failed."""
    params = {
        "run_id": run_id,
        "apply_cause": None,
        "apply_message": None,
        "outcome": outcome.variant,
        "cause_kind": cause.variant,
        "error": text,
    }
    return TurnInput("run_failed", params)


_CANCELLED: Final = (TurnInput("cancellation_observed"),)
_FATAL: Final = TurnTerminalCauseKind.FATAL_FAILURE
_CAUSES: Final = {
    "HOOK_DENIED": TurnTerminalCauseKind.HOOK_DENIED,
    "HOOK_FAILED": TurnTerminalCauseKind.HOOK_FAILURE,
    "HOOK_REPAIR_NEEDED": TurnTerminalCauseKind.HOOK_DENIED,
    "TOOL_ERROR": TurnTerminalCauseKind.TOOL_FAILURE,
    "TIMEOUT_TOOL": TurnTerminalCauseKind.TOOL_FAILURE,
}


def cancelled_result(of: RunResult | UnsetType, reason: str = "") -> RunResult:
    """The result of a cancelled run, with the output it had so far."""
    error = ErrorObject(code="CANCELLED", message=reason or "the run was cancelled")
    output = RunResult() if of is UNSET else of
    cancelled = RunResult.failed(RunStatus.CANCELLED, error, metrics=output.metrics)
    cancelled = cancelled.with_output(output.output)
    return msgspec.structs.replace(cancelled, external_calls=output.external_calls)


def end_unexecuted(view: ActiveRunView, output: RunOutput) -> RecordStep:
    """The last step of a cancelled run that has no driver; ``output``: what it had printed."""
    result = cancelled_result(UNSET).with_output(output)
    return RecordStep(run_id=view.run_id, number=view.steps + 1, answered=False, result=result)


def external_result(phase: TurnPhase) -> RunResult:
    """The result of a run whose turn was ended by a client's input."""
    if phase is TurnPhase.COMPLETED:
        return RunResult()
    if phase is TurnPhase.CANCELLED:
        return cancelled_result(UNSET)
    error = ErrorObject(
        code="RUNTIME_ERROR", message="an input of a client made the run's turn fail"
    )
    return RunResult.failed(RunStatus.RUNTIME_ERROR, error)


def refused_result(refusal: CodedError) -> RunResult:
    """The result of a run that could not start."""
    error = ErrorObject(code=refusal.code, message=refusal.message, hint=refusal.hint or None)
    return RunResult.failed(RunStatus.VALIDATION_ERROR, error)
