"""Converts runs as the journal records them into the logs that rebuild a session.

A record holds all inputs of a program: its request, its tools, the results of its calls, and the
time that passed while it waited for a timer. Randomness, sleeping and the grouping of calls follow
from the program and its guest build. This module checks the form of a record; the replay checks
that the program makes the recorded calls.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from rookery.actors.sandbox.contract import Tool, ToolResult
from rookery.actors.sandbox.runtime.introspection import ToolDescriptions
from rookery.actors.sandbox.sessions.run_log import (
    LogEntry,
    RecordedResult,
    ResumedCall,
    ResumeEntry,
    RunLog,
    SyncCallEntry,
)
from rookery.actors.sandbox.validate import limits_in_force
from rookery.schemas.errors import Failed
from rookery.schemas.run import RunRequest, SessionLimits

__all__ = ["RecordedCall", "RecordedRun", "ResultBatch", "to_entries", "to_logs"]


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call and its result."""

    number: int
    """The call's ``id``."""
    name: str
    digest: str
    awaited: bool
    answer: ToolResult


class ResultBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one ``resume``: of one synchronous call, or of awaited calls in the order of
    their numbers, which is the order of their results."""

    calls: tuple[RecordedCall, ...] = ()
    """Empty if a timer of the program fired first."""
    passed_ms: tuple[int, ...] = ()
    """Each ``advance_ms`` of ``resume``: first those without results, then the one with these."""
    whole: bool = True
    """Whether no other call was open."""


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that ended and left its effects on the session."""

    request: RunRequest
    limits: SessionLimits
    """The limits of its session at that time."""
    tools: tuple[Tool, ...]
    """The tools of the run, with their descriptions."""
    now_ms: int
    batches: tuple[ResultBatch, ...] = ()


def to_logs(runs: Iterable[RecordedRun]) -> list[RunLog]:
    """The logs of these runs; runs with equal tools share the descriptions."""
    history: list[RunLog] = []
    tools: dict[str, Tool] = {}
    catalogue = ToolDescriptions.of(tools)
    for run in runs:
        offered = {tool.name: tool for tool in run.tools}
        if offered != tools:
            tools, catalogue = offered, ToolDescriptions.of(offered)
        log = RunLog.of(run.request, limits_in_force(run.request, run.limits), tools, run.now_ms)
        log.entries, log.catalogue = to_entries(run.batches), catalogue
        history.append(log)
    return history


def to_entries(batches: Iterable[ResultBatch]) -> list[LogEntry]:
    """The log entries of these batches. The numbers of calls have no gaps, unless the program
    continued without some of its calls."""
    entries: list[LogEntry] = []
    known: set[int] = set()
    gaps = False
    for batch in batches:
        gaps |= not batch.whole
        numbers = [call.number for call in batch.calls]
        expected = list(range(len(known) + 1, len(known) + len(numbers) + 1))
        if (numbers != expected and not gaps) or not known.isdisjoint(numbers):
            last = max(known, default=0)
            raise Failed("REPLAY_DIVERGED", f"after call {last} the record has calls {numbers}")
        *waited, last = batch.passed_ms or (0,)
        entries += [ResumeEntry([], advance_ms) for advance_ms in waited]
        entries.append(_to_entry(batch, last))
        known.update(numbers)
    return entries


def _to_entry(batch: ResultBatch, advance_ms: int) -> LogEntry:
    calls = batch.calls
    results = [RecordedResult.of(call.answer) for call in calls]
    if all(call.awaited for call in calls):
        fed = [
            ResumedCall(c.number, c.name, c.digest, t) for c, t in zip(calls, results, strict=True)
        ]
        return ResumeEntry(fed, advance_ms, whole=batch.whole)
    if len(calls) > 1:
        numbers = [call.number for call in calls]
        raise Failed("REPLAY_DIVERGED", f"calls {numbers} are in one batch: one is synchronous")
    return SyncCallEntry(calls[0].name, calls[0].digest, results[0])
