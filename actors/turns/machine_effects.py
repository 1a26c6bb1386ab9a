"""What turn_execution's rows ask of the world, in the words of the state after them."""

from __future__ import annotations

from typing import Any

from rookery.actors.kernel.machines.machine import TransitionEffect
from rookery.actors.turns.turn_state import Turn
from rookery.schemas.facts import turn as facts
from rookery.schemas.machines.turn import TurnTerminalCauseKind, TurnTerminalOutcome

__all__ = [
    "COMPACT",
    "TurnBoundaryApplied",
    "TurnCheckCompaction",
    "TurnRunCancelled",
    "TurnRunCompleted",
    "TurnRunFailed",
    "TurnRunStarted",
    "boundary_applied",
    "run_cancelled",
    "run_completed",
    "run_failed",
    "run_started",
]


class TurnRunStarted(TransitionEffect, frozen=True, kw_only=True):
    """The run's driver may begin."""

    run_id: str


class TurnBoundaryApplied(TransitionEffect, frozen=True, kw_only=True):
    """What may only change between two steps may change now."""

    run_id: str | None
    boundary_sequence: int


class TurnRunCompleted(TransitionEffect, frozen=True, kw_only=True):
    """The run's turn came to its regular end."""

    run_id: str | None
    outcome: TurnTerminalOutcome


class TurnRunFailed(TransitionEffect, frozen=True, kw_only=True):
    """The run's turn failed."""

    run_id: str | None
    terminal_cause_kind: TurnTerminalCauseKind
    error: str


class TurnRunCancelled(TransitionEffect, frozen=True, kw_only=True):
    """The run's turn has stopped as it was told to."""

    run_id: str | None
    reason: str


class TurnCheckCompaction(TransitionEffect, frozen=True, kw_only=True):
    """This is a good moment to make the conversation shorter."""


COMPACT = TurnCheckCompaction()


def run_started(_: Turn, asked: Any) -> TurnRunStarted:
    return TurnRunStarted(run_id=asked.run)


def boundary_applied(turn: Turn, _: object) -> TurnBoundaryApplied:
    return TurnBoundaryApplied(
        run_id=turn.host.current_run_id, boundary_sequence=turn.boundary_count
    )


def run_completed(turn: Turn, _: object) -> TurnRunCompleted:
    return TurnRunCompleted(run_id=turn.host.current_run_id, outcome=TurnTerminalOutcome.COMPLETED)


def run_cancelled(turn: Turn, _: object) -> TurnRunCancelled:
    return TurnRunCancelled(run_id=turn.host.current_run_id, reason="Observed")


def run_failed(turn: Turn, asked: facts.FatallyFailed) -> TurnRunFailed:
    return TurnRunFailed(
        run_id=turn.host.current_run_id, terminal_cause_kind=asked.cause_kind, error=asked.error
    )
