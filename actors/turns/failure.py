"""The classes and causes of a turn's failure, and the class of its end.

A failure has a class (the kind of error an agent met) and a cause (why the turn failed); each
determines the other. Its message is text for people.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from rookery.schemas.machines.turn import (
    AgentErrorClass,
    TurnFailureReason,
    TurnTerminalCauseKind,
    TurnTerminalOutcome,
)

__all__ = [
    "BudgetDimension",
    "TerminalClass",
    "cause_of_budget",
    "cause_of_class",
    "class_of_cause",
    "classify_terminal",
    "failure_of_cause",
    "failure_of_class",
]

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
