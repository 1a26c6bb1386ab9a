"""What the turns may ask of the world."""

from __future__ import annotations

from rookery.actors.kernel.decider import Effect
from rookery.actors.messages import ActiveRunView
from rookery.schemas.calls import RequestedCall
from rookery.schemas.run import (
    RunResult,
)

__all__ = ["ContinueRun", "ExecuteRun", "ReportTurnOver", "SendInterim", "SendResult", "StopRun"]


class ExecuteRun(Effect, frozen=True, kw_only=True):
    """Take the run's steps until it has ended or is parked."""

    session: str
    view: ActiveRunView
    """Where it stands."""


class ContinueRun(Effect, frozen=True, kw_only=True):
    """Take the run's steps from where it stands by now, unless that is done already."""

    session: str
    run_id: str


class ReportTurnOver(Effect, frozen=True, kw_only=True):
    """The run has ended on record, and its session may not know of it."""

    session: str
    run_id: str


class SendResult(Effect, frozen=True, kw_only=True):
    """The run has ended, and whoever waits for it is about to be told."""

    run_id: str
    result: RunResult


class SendInterim(Effect, frozen=True, kw_only=True):
    """Whoever holds the line for the run's end is told what it waits for."""

    session: str
    run_id: str
    code: str
    snapshot_id: str
    calls: tuple[RequestedCall, ...]
    """What it waits for."""


class StopRun(Effect, frozen=True, kw_only=True):
    """The run is to end now."""

    session: str
    run_id: str
