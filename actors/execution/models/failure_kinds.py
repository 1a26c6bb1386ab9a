"""Failures of a turn: their classes and causes, and whether a call to a model is repeated."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from rookery.schemas.machines.turn import (
    AgentErrorClass,
    LlmFailureKind,
    LlmRetryFailure,
    LlmRetryFailureKind,
    LlmRetryPlan,
    LlmRetrySchedule,
    TurnFailureReason,
    TurnTerminalCauseKind,
    TurnTerminalOutcome,
)

__all__ = [
    "RATE_LIMIT_FLOOR_MS",
    "BudgetDimension",
    "LlmFailure",
    "RetryPolicy",
    "TerminalClass",
    "cause_of_budget",
    "cause_of_class",
    "class_of_cause",
    "classify_terminal",
    "failure_of_cause",
    "failure_of_class",
]

# --- failure --------------------------------------------------------------------------------------

# The classes and causes of a turn's failure, and the class of its end.
#
# A failure has a class (the kind of error an agent met) and a cause (why the turn failed); each
# determines the other. Its message is text for people.


Cause = TurnTerminalCauseKind
Error = AgentErrorClass
Outcome = TurnTerminalOutcome

_CAUSES: Final = {
    Error.HOOK: Cause.HOOK_FAILURE,
    Error.LLM: Cause.LLM_FAILURE,
    Error.TOOL: Cause.TOOL_FAILURE,
    Error.STRUCTURED_OUTPUT: Cause.STRUCTURED_OUTPUT_VALIDATION_FAILED,
    Error.INVALID_OUTPUT_SCHEMA: Cause.STRUCTURED_OUTPUT_VALIDATION_FAILED,
    Error.BUDGET: Cause.BUDGET_EXHAUSTED,
    Error.MAX_TURNS: Cause.TURN_LIMIT_REACHED,
}
_CLASSES: Final = {
    Cause.UNKNOWN: Error.INTERNAL,
    Cause.HOOK_DENIED: Error.HOOK,
    Cause.HOOK_FAILURE: Error.HOOK,
    Cause.LLM_FAILURE: Error.LLM,
    Cause.TOOL_FAILURE: Error.TOOL,
    Cause.STRUCTURED_OUTPUT_VALIDATION_FAILED: Error.STRUCTURED_OUTPUT,
    Cause.BUDGET_EXHAUSTED: Error.BUDGET,
    Cause.TIME_BUDGET_EXCEEDED: Error.BUDGET,
    Cause.RETRY_EXHAUSTED: Error.LLM,
    Cause.TURN_LIMIT_REACHED: Error.MAX_TURNS,
    Cause.RUNTIME_APPLY_FAILURE: Error.INTERNAL,
    Cause.FATAL_FAILURE: Error.TERMINAL,
}


def cause_of_class(error_class: AgentErrorClass) -> TurnTerminalCauseKind:
    """The cause for an error class."""
    return _CAUSES.get(error_class, Cause.FATAL_FAILURE)


def class_of_cause(cause_kind: TurnTerminalCauseKind) -> AgentErrorClass:
    """The error class for a cause."""
    return _CLASSES[cause_kind]


def failure_of_class(error_class: AgentErrorClass, message: str) -> TurnFailureReason:
    """The reason from an error class."""
    return TurnFailureReason(
        error_class=error_class, cause_kind=cause_of_class(error_class), message=message
    )


def failure_of_cause(cause_kind: TurnTerminalCauseKind, message: str) -> TurnFailureReason:
    """The reason from a cause."""
    return TurnFailureReason(
        error_class=class_of_cause(cause_kind), cause_kind=cause_kind, message=message
    )


class BudgetDimension(StrEnum):
    """A budget that a turn can exhaust."""

    TOKENS = "Tokens"
    TIME = "Time"
    TOOL_CALLS = "ToolCalls"


def cause_of_budget(dimension: BudgetDimension) -> TurnTerminalCauseKind:
    """The cause of a turn that exhausted ``dimension``."""
    if dimension is BudgetDimension.TIME:
        return Cause.TIME_BUDGET_EXCEEDED
    return Cause.BUDGET_EXHAUSTED


class TerminalClass(StrEnum):
    """How a turn's end is reported to the waiting client."""

    MISSING = "Missing"
    """The turn has not ended."""
    SUCCESS = "Success"
    CANCELLED = "Cancelled"
    HARD_FAILURE = "HardFailure"


def classify_terminal(
    outcome: TurnTerminalOutcome | None, cause_kind: TurnTerminalCauseKind | None
) -> TerminalClass:
    """The class of an outcome; one that contradicts its cause is a hard failure."""
    no_cause = cause_kind in (None, Cause.UNKNOWN)
    match outcome:
        case None | Outcome.NONE:
            return TerminalClass.MISSING
        case Outcome.COMPLETED if no_cause:
            return TerminalClass.SUCCESS
        case Outcome.CANCELLED if no_cause:
            return TerminalClass.CANCELLED
        case Outcome.BUDGET_EXHAUSTED if cause_kind is Cause.BUDGET_EXHAUSTED:
            return TerminalClass.SUCCESS
        case _:
            return TerminalClass.HARD_FAILURE


# --- retry ----------------------------------------------------------------------------------------

# Whether and when a failed call to a model is repeated.
#
# A plan is a function of the failure, the number of attempts, the remaining budget and a jitter
# that the caller draws. The caller waits, or ends the turn with a fatal failure; ``turn_machine``
# records the plan.


RATE_LIMIT_FLOOR_MS: Final = 30_000
"""Minimal delay after a rate limit without a time."""


_RETRYABLE: Final = {
    LlmFailureKind.RATE_LIMITED: LlmRetryFailureKind.RATE_LIMITED,
    LlmFailureKind.NETWORK_TIMEOUT: LlmRetryFailureKind.NETWORK_TIMEOUT,
    LlmFailureKind.CALL_TIMEOUT: LlmRetryFailureKind.CALL_TIMEOUT,
}


class LlmFailure(msgspec.Struct, frozen=True, kw_only=True):
    """A failed call to a model."""

    provider: str
    kind: LlmFailureKind
    message: str
    retry_after_ms: int | None = None
    """The delay that a rate-limiting provider requested."""
    duration_ms: int | None = None
    """The duration of a call that timed out."""
    retryable: bool = False
    """For a provider's error: whether its type is retryable. Its payload is not considered."""

    @property
    def retryable_as(self) -> LlmRetryFailureKind | None:
        """The kind under which a retry makes sense; ``None`` if none does."""
        if self.kind is LlmFailureKind.PROVIDER_ERROR and self.retryable:
            return LlmRetryFailureKind.RETRYABLE_PROVIDER_ERROR
        return _RETRYABLE.get(self.kind)


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How often and with which delays calls are repeated."""

    max_retries: int = 3
    initial_delay_ms: int = 500
    max_delay_ms: int = 30_000
    multiplier: float = 2.0
    call_timeout_ms: int | None = None

    def delay_for_attempt(self, attempt: int, *, jitter: float = 1.0) -> int:
        """Milliseconds before ``attempt``, counted from 1; ``jitter`` is between 0.9 and 1.1."""
        if attempt == 0:
            return 0
        try:
            delay_ms = self.initial_delay_ms * self.multiplier ** (attempt - 1) * jitter
        except OverflowError:
            return self.max_delay_ms
        return int(min(delay_ms, self.max_delay_ms))

    def schedule_retry(
        self,
        failure: LlmFailure,
        index: int,
        *,
        remaining_budget_ms: int | None = None,
        jitter: float = 1.0,
    ) -> LlmRetrySchedule | None:
        """The next attempt after ``index`` attempts; ``None`` if there is none."""
        kind = failure.retryable_as
        if kind is None or index >= self.max_retries:
            return None
        rate_limited = kind is LlmRetryFailureKind.RATE_LIMITED
        hint_ms = failure.retry_after_ms if rate_limited else None
        computed_ms = self.delay_for_attempt(index + 1, jitter=jitter)
        hinted = hint_ms is not None and hint_ms > computed_ms
        floored = rate_limited and not hinted and computed_ms < RATE_LIMIT_FLOOR_MS
        wanted_ms = RATE_LIMIT_FLOOR_MS if floored else max(computed_ms, hint_ms or 0)
        left_ms = wanted_ms if remaining_budget_ms is None else remaining_budget_ms
        return LlmRetrySchedule(
            failure=LlmRetryFailure(
                provider=failure.provider,
                kind=kind,
                retry_after_ms=hint_ms,
                duration_ms=failure.duration_ms,
                message=failure.message,
            ),
            plan=LlmRetryPlan(
                attempt=index + 1,
                max_retries=self.max_retries,
                computed_delay_ms=computed_ms,
                selected_delay_ms=min(wanted_ms, left_ms),
                retry_after_hint_ms=hint_ms,
                rate_limit_floor_applied=floored,
                budget_capped=left_ms < wanted_ms,
            ),
        )
