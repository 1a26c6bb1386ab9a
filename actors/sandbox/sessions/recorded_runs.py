"""Runs as a journal tells of them, made into the logs a session is run again from.

What entered a program is all there is to record: its request, the tools it was offered, what its
calls were told, and how far its time had gone on where it waited for a time, too. Everything else -
chance, sleeping, which calls go out together - comes out of the program and its guest again. Owns
what a record must look like; that the program still asks for what is in it is found out when it is
run again.
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
    """A call, and what its program was told."""

    number: int
    """The call's ``id``."""
    name: str
    digest: str
    awaited: bool
    answer: ToolResult


class ResultBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What was answered together: one synchronous call, or calls of one ``Waiting``, in the order
    of their numbers - which is the order in which ``resume`` was given their answers."""

    calls: tuple[RecordedCall, ...] = ()
    """None, if a time of the program's came first."""
    passed_ms: tuple[int, ...] = ()
    """The ``advance_ms`` of ``resume``: of those without answers, and of the one with these."""
    whole: bool = True
    """No other call was open."""


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that came to its end and left its effects on the session."""

    request: RunRequest
    limits: SessionLimits
    """Of its session, then."""
    tools: tuple[Tool, ...]
    """As they were offered, with what was told of them."""
    now_ms: int
    batches: tuple[ResultBatch, ...] = ()


def to_logs(runs: Iterable[RecordedRun]) -> list[RunLog]:
    """Runs that were offered the same share one description of it."""
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
    """Every call is answered before the program goes on, so the numbers have no gaps - until it
    has gone on without some of them."""
    entries: list[LogEntry] = []
    known: set[int] = set()
    gaps = False
    for batch in batches:
        gaps |= not batch.whole
        numbers = [call.number for call in batch.calls]
        expected = list(range(len(known) + 1, len(known) + len(numbers) + 1))
        if (numbers != expected and not gaps) or not known.isdisjoint(numbers):
            last = max(known, default=0)
            raise Failed("REPLAY_DIVERGED", f"after call {last} the record goes on with {numbers}")
        *waited, last = batch.passed_ms or (0,)
        entries += [ResumeEntry([], advance_ms) for advance_ms in waited]
        entries.append(_to_entry(batch, last))
        known.update(numbers)
    return entries


def _to_entry(batch: ResultBatch, advance_ms: int) -> LogEntry:
    calls = batch.calls
    told = [RecordedResult.of(call.answer) for call in calls]
    if all(call.awaited for call in calls):
        fed = [ResumedCall(c.number, c.name, c.digest, t) for c, t in zip(calls, told, strict=True)]
        return ResumeEntry(fed, advance_ms, whole=batch.whole)
    if len(calls) > 1:
        numbers = [call.number for call in calls]
        raise Failed("REPLAY_DIVERGED", f"calls {numbers} cannot have been answered together")
    return SyncCallEntry(calls[0].name, calls[0].digest, told[0])
