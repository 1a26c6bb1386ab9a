"""Turns: the state machine of a run, from its start to exactly one end."""

from rookery.actors.turns.decider import TurnsDecider
from rookery.actors.turns.state import (
    ImmediateKind,
    cancelled_result,
    end_run,
    end_unexecuted,
    request_calls,
    run_failed,
)
from rookery.actors.turns.transitions import Turn

__all__ = [
    "ImmediateKind",
    "Turn",
    "TurnsDecider",
    "cancelled_result",
    "end_run",
    "end_unexecuted",
    "request_calls",
    "run_failed",
]
