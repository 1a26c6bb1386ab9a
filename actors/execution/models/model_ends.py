"""How a run ends that a model drove: its result, and the inputs of the turn's machine.

The decider acknowledges the end in the same message: a model's turn waits for no client.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec import UNSET

from rookery.actors.execution.agents.conversation import Conversation
from rookery.actors.execution.agents.extraction import EXTRACTION_RETRIES_MAX
from rookery.actors.execution.agents.model_calls import storable
from rookery.actors.execution.agents.model_port import ModelAnswer
from rookery.actors.execution.driver import Finished
from rookery.actors.messages import TurnInput
from rookery.actors.turn_inputs import cancelled_result, run_failed
from rookery.schemas.envelope import Fact
from rookery.schemas.facts.conversation import Compacted
from rookery.schemas.machines.turn import TurnTerminalCauseKind, TurnTerminalOutcome
from rookery.schemas.run import (
    Diagnostic,
    ErrorObject,
    Metrics,
    ResultKind,
    RunResult,
    RunStatus,
    Severity,
)
from rookery.schemas.seed.lifecycle import ProviderStopReason

__all__ = [
    "TURN_LIMIT",
    "cancelled_end",
    "compacted_end",
    "completed_end",
    "extracted_end",
    "extraction_inputs",
    "failed_end",
    "invalid_end",
    "limit_end",
    "timeout_end",
    "without_calls_inputs",
]

TURN_LIMIT: Final = "TURN_LIMIT"
_ENTERED: Final = (
    TurnInput("llm_returned_terminal"),
    TurnInput("enter_extraction", {"max_retries": EXTRACTION_RETRIES_MAX}),
)
_CUT = Diagnostic(
    severity=Severity.WARNING,
    code="MODEL_OUTPUT_CUT",
    message="the model's answer reached its limit of tokens",
    hint="settings.max_output_tokens",
)


def completed_end(
    run_id: str, conversation: Conversation, answer: ModelAnswer, answers: tuple[Fact, ...]
) -> Finished:
    """The model's last text is the result."""
    is_cut = answer.stop_reason is ProviderStopReason.MAX_TOKENS
    result = RunResult(
        result=storable(answer.text),
        result_kind=ResultKind.JSON,
        diagnostics=(_CUT,) if is_cut else (),
        **_use(conversation),
    )
    return Finished(result, kept=True, inputs=_completing(run_id), answers=answers)


def compacted_end(run_id: str, conversation: Conversation, answers: tuple[Fact, ...]) -> Finished:
    """The older messages are replaced, as the fact says, or were too few."""
    found = [fact for fact in answers if isinstance(fact, Compacted)]
    value = {"messages": sum(fact.messages for fact in found)}
    for fact in found:
        value |= {"tokens_before": fact.tokens_before, "tokens_after": fact.tokens_after}
    result = RunResult(result=value, result_kind=ResultKind.JSON, **_use(conversation))
    return Finished(result, kept=True, inputs=_completing(run_id), answers=answers)


def _completing(run_id: str) -> tuple[TurnInput, ...]:
    return (
        TurnInput("llm_returned_terminal"),
        TurnInput("boundary_complete"),
        TurnInput("run_completed", {"run_id": run_id}),
    )


def extraction_inputs(error: str, *, is_first: bool) -> tuple[TurnInput, ...]:
    """The inputs of a text that does not fit, and leads to another question."""
    if is_first:
        return (*_ENTERED, TurnInput("extraction_start"))
    return (*_ENTERED, TurnInput("extraction_validation_failed", {"error": error}))


def without_calls_inputs(wanted: int, *, has_waited: bool) -> tuple[TurnInput, ...]:
    """The inputs of an answer that leads to no call: the machine resolves it to the next boundary
    if an earlier barrier was satisfied."""
    returned = TurnInput("llm_returned_tool_calls", {"tool_count": wanted})
    if not wanted:
        return (returned, TurnInput("boundary_continue"))
    resolved = (returned, TurnInput("tool_calls_resolved"))
    return (*resolved, TurnInput("boundary_continue")) if has_waited else resolved


def extracted_end(
    run_id: str,
    conversation: Conversation,
    answer: ModelAnswer,
    value: Any,
    answers: tuple[Fact, ...],
) -> Finished:
    """The model's last text fits the schema of the result."""
    is_cut = answer.stop_reason is ProviderStopReason.MAX_TOKENS
    result = RunResult(
        result=value,
        result_kind=ResultKind.JSON,
        diagnostics=(_CUT,) if is_cut else (),
        **_use(conversation),
    )
    inputs = (
        *_ENTERED,
        TurnInput("extraction_validation_passed"),
        TurnInput("run_completed", {"run_id": run_id}),
    )
    return Finished(result, kept=True, inputs=inputs, answers=answers)


def invalid_end(
    run_id: str,
    conversation: Conversation,
    message: str,
    answers: tuple[Fact, ...],
    *,
    is_refusal: bool = False,
) -> Finished:
    """No text of the model fits the schema; ``is_refusal``: it was refused."""
    error = ErrorObject(
        code="OUTPUT_INVALID", message=message, hint="the last model.answered has the candidate"
    )
    text = f"{error.code}: {message}"
    failing: tuple[TurnInput, ...] = (TurnInput("extraction_failed", {"error": message}),)
    if not is_refusal:
        failing = (*_ENTERED, TurnInput("extraction_validation_failed", {"error": message}))
    cause = TurnTerminalCauseKind.STRUCTURED_OUTPUT_VALIDATION_FAILED
    outcome = TurnTerminalOutcome.STRUCTURED_OUTPUT_VALIDATION_FAILED
    inputs = (*failing, run_failed(run_id, outcome, cause, text))
    result = _failed_result(conversation, RunStatus.RUNTIME_ERROR, error)
    return Finished(result, kept=True, inputs=inputs, answers=answers)


def failed_end(
    run_id: str,
    conversation: Conversation,
    error: ErrorObject,
    answers: tuple[Fact, ...],
    attempts: int,
) -> Finished:
    """The model gave no answer, or none that leads on. ``attempts``: made in vain, if it was asked
    again until its retries were spent."""
    cause = TurnTerminalCauseKind.LLM_FAILURE
    if attempts:
        cause = TurnTerminalCauseKind.RETRY_EXHAUSTED
        text = f"asked {attempts} times in vain, at last: {error.message}"
        error = ErrorObject(code=error.code, message=text)
    text = f"{error.code}: {error.message}"
    failing = TurnInput("fatal_failure", {"cause_kind": cause.variant, "error": text})
    inputs = (failing, run_failed(run_id, TurnTerminalOutcome.FAILED, cause, text))
    result = _failed_result(conversation, RunStatus.RUNTIME_ERROR, error)
    return Finished(result, kept=True, inputs=inputs, answers=answers)


def limit_end(
    run_id: str,
    conversation: Conversation,
    error: ErrorObject,
    answers: tuple[Fact, ...],
    before: tuple[TurnInput, ...],
) -> Finished:
    """The model may not be asked again. ``before``: the inputs of the step that would ask."""
    is_turns = error.code == TURN_LIMIT
    outcome, cause = TurnTerminalOutcome.BUDGET_EXHAUSTED, TurnTerminalCauseKind.BUDGET_EXHAUSTED
    if is_turns:
        outcome, cause = TurnTerminalOutcome.FAILED, TurnTerminalCauseKind.TURN_LIMIT_REACHED
    text = f"{error.code}: {error.message}"
    inputs = (
        *before,
        TurnInput("turn_limit_reached" if is_turns else "budget_exhausted"),
        run_failed(run_id, outcome, cause, text),
    )
    result = _failed_result(conversation, RunStatus.RESOURCE_EXHAUSTED, error)
    return Finished(result, kept=True, inputs=inputs, answers=answers)


def timeout_end(
    run_id: str, conversation: Conversation, limit_ms: int, answers: tuple[Fact, ...]
) -> Finished:
    """The run's time is up."""
    error = ErrorObject(
        code="TIMEOUT_WALL",
        message=f"the run took longer than {limit_ms} ms",
        hint="limits.agent_wall_ms of the request",
    )
    outcome = TurnTerminalOutcome.TIME_BUDGET_EXCEEDED
    cause = TurnTerminalCauseKind.TIME_BUDGET_EXCEEDED
    text = f"{error.code}: {error.message}"
    inputs = (
        TurnInput("time_budget_exceeded"),
        run_failed(run_id, outcome, cause, text),
    )
    result = _failed_result(conversation, RunStatus.TIMEOUT, error)
    return Finished(result, kept=False, inputs=inputs, answers=answers)


def cancelled_end(conversation: Conversation) -> Finished:
    """The run was cancelled while its model was asked."""
    return Finished(cancelled_result(RunResult(**_use(conversation))), kept=False)


def _use(conversation: Conversation) -> dict[str, Any]:
    """What the run used, as fields of its result."""
    conversation.close_calls()
    run = conversation.run
    metrics = Metrics(
        duration_ms=run.duration_ms,
        external_calls_count=len(run.records),
        instructions=run.instructions,
    )
    return {
        "metrics": metrics,
        "external_calls": tuple(run.records),
        "usage": run.usage,
        "stop_reason": run.stop_reason if run.usage.turns else UNSET,
    }


def _failed_result(conversation: Conversation, status: RunStatus, error: ErrorObject) -> RunResult:
    return RunResult(
        status=status,
        error=error,
        diagnostics=(Diagnostic.error(error),),
        **_use(conversation),
    )
