"""Turns: the state machine of a run, from its start to exactly one end."""

from rookery.actors.turns.decider import TurnsDecider
from rookery.actors.turns.effects import (
    ContinueRun,
    ExecuteRun,
    InvokeCancelHooks,
    ReportTurnOver,
    SendInterim,
    SendResult,
    SendStoredResult,
    StopRun,
)
from rookery.actors.turns.failure import LlmFailure, RetryPolicy
from rookery.actors.turns.model_routing_machine import MODEL_ROUTING
from rookery.actors.turns.realtime_turn_machine import PRODUCT_TURN
from rookery.actors.turns.slot_machine import SLOT
from rookery.actors.turns.state import (
    ImmediateKind,
    cancelled_result,
    end_run,
    end_unexecuted,
    request_calls,
    run_failed,
)
from rookery.actors.turns.transitions import Turn
from rookery.actors.turns.turn_machine import TURN

__all__ = [
    "MODEL_ROUTING",
    "PRODUCT_TURN",
    "SLOT",
    "TURN",
    "ContinueRun",
    "ExecuteRun",
    "ImmediateKind",
    "InvokeCancelHooks",
    "LlmFailure",
    "ReportTurnOver",
    "RetryPolicy",
    "SendInterim",
    "SendResult",
    "SendStoredResult",
    "StopRun",
    "Turn",
    "TurnsDecider",
    "cancelled_result",
    "end_run",
    "end_unexecuted",
    "request_calls",
    "run_failed",
]
