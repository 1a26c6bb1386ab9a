"""``ObservedTurn``: how far the turn of the current run is, from its facts.

A session whose runs are executed by a driver outside of the nodes follows the turn's facts, so that
a run ends with its turn and not before.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec.structs import replace

from rookery.schemas.facts import turn as facts
from rookery.schemas.machines.turn import TurnPhase, TurnTerminalCauseKind

__all__ = ["NO_TURN", "ObservedTurn", "observe_turn"]


class ObservedTurn(msgspec.Struct, frozen=True):
    """The turn of a run, as far as it is known."""

    phase: str | None = None
    """``None``: no turn began. A turn that has not ended is ``ApplyingPrimitive``."""
    terminal_cause_kind: str | None = None
    run_id: str = ""

    @property
    def in_progress(self) -> bool:
        return self.phase is not None and self.phase not in _AT_REST


NO_TURN: Final = ObservedTurn()

_IN_PROGRESS: Final = TurnPhase.APPLYING_PRIMITIVE.value
_COMPLETED, _FAILED, _CANCELLED = (
    TurnPhase.COMPLETED.value,
    TurnPhase.FAILED.value,
    TurnPhase.CANCELLED.value,
)
_AT_REST: Final = frozenset({TurnPhase.READY.value, _COMPLETED, _FAILED, _CANCELLED})
_STARTS: Final = frozenset(
    {facts.Started, facts.ImmediateAppendStarted, facts.ImmediateContextStarted}
)
_PHASES: Final[dict[type, str]] = {
    facts.CallbackPending: _COMPLETED,
    facts.CancellationObserved: _CANCELLED,
    facts.CancelledWithoutRun: _CANCELLED,
    facts.Cancelled: _CANCELLED,
    facts.Completed: _COMPLETED,
    facts.ExtractionFailed: _COMPLETED,
    facts.ExtractionValidationPassed: _COMPLETED,
    facts.TerminalAcknowledged: TurnPhase.READY.value,
}
_CAUSES: Final[dict[type, TurnTerminalCauseKind]] = {
    facts.BudgetExhausted: TurnTerminalCauseKind.BUDGET_EXHAUSTED,
    facts.TimeBudgetExceeded: TurnTerminalCauseKind.TIME_BUDGET_EXCEEDED,
    facts.TurnLimitReached: TurnTerminalCauseKind.TURN_LIMIT_REACHED,
}
_PHASES_OF_ROWS: Final = {
    "BoundaryComplete": _COMPLETED,
    "BoundaryCompleteCancelled": _CANCELLED,
    "BoundaryCompleteCompleted": _COMPLETED,
    "BoundaryContinueToCancelled": _CANCELLED,
    "ExtractionValidationFailedExhausted": _COMPLETED,
    "PrimitiveAppliedImmediate": _COMPLETED,
    "PrimitiveAppliedImmediateCancelled": _CANCELLED,
    "PrimitiveAppliedImmediateCompleted": _COMPLETED,
    "RunCompletedKeepsTerminal": "",
}
"""Where the row decides whether the turn ends. Empty: the phase stays."""


def observe_turn(turn: ObservedTurn, fact: Any) -> ObservedTurn:
    """The turn after one of its facts."""
    kind = type(fact)
    if kind in _STARTS:
        return ObservedTurn(_IN_PROGRESS, None, fact.run)
    if kind is facts.FatallyFailed or kind is facts.Failed:
        return replace(turn, phase=_FAILED, terminal_cause_kind=fact.cause_kind.variant)
    if kind in _CAUSES:
        return replace(turn, phase=_FAILED, terminal_cause_kind=_CAUSES[kind].variant)
    phase = _PHASES_OF_ROWS.get(getattr(fact, "row", ""), _PHASES.get(kind, ""))
    return replace(turn, phase=phase) if phase else turn
