"""Runs as a journal tells of them, made into the logs a session is run again from.

What entered a program is all there is to record: its request, the tools it was offered, and what
its calls were told. Everything else - chance, time, sleeping, which calls go out together - comes
out of the program and its guest again. Owns what a record must look like; that the program still
asks for what is in it is found out when it is run again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from rookery.actors.sandbox.contract import Answer, Tool
from rookery.actors.sandbox.discovery import Catalogue
from rookery.actors.sandbox.run_log import Answered, Entry, Resumed, ResumedCall, RunLog, Told
from rookery.actors.sandbox.validate import limits_in_force
from rookery.schemas.errors import Failed
from rookery.schemas.run import RunRequest, SessionLimits

__all__ = ["Batch", "RecordedCall", "RecordedRun", "entries_of", "history_of"]


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call, and what its program was told."""

    number: int
    """The call's ``id``."""
    name: str
    digest: str
    awaited: bool
    answer: Answer


Batch = Sequence[RecordedCall]
"""What was answered together: one synchronous call, or all calls of one ``Waiting``, in the order
of their numbers - which is the order in which ``resume`` was given their answers."""


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that came to its end and left its effects on the session."""

    request: RunRequest
    limits: SessionLimits
    """Of its session, then."""
    tools: tuple[Tool, ...]
    """As they were offered, with what was told of them."""
    now_ms: int
    batches: tuple[tuple[RecordedCall, ...], ...] = ()


def history_of(runs: Iterable[RecordedRun]) -> list[RunLog]:
    """Runs that were offered the same share one description of it."""
    history: list[RunLog] = []
    tools: dict[str, Tool] = {}
    catalogue = Catalogue.of(tools)
    for run in runs:
        offered = {tool.name: tool for tool in run.tools}
        if offered != tools:
            tools, catalogue = offered, Catalogue.of(offered)
        log = RunLog.of(run.request, limits_in_force(run.request, run.limits), tools, run.now_ms)
        log.entries, log.catalogue = entries_of(run.batches), catalogue
        history.append(log)
    return history


def entries_of(batches: Iterable[Batch]) -> list[Entry]:
    """Every call is answered before the program goes on, so the numbers have no gaps."""
    entries: list[Entry] = []
    known = 0
    for batch in batches:
        expected = list(range(known + 1, known + len(batch) + 1))
        numbers = [call.number for call in batch]
        if numbers != expected:
            raise Failed("REPLAY_DIVERGED", f"after call {known} the record goes on with {numbers}")
        entries.append(_entry(batch))
        known += len(batch)
    return entries


def _entry(batch: Batch) -> Entry:
    told = [Told.of(call.answer) for call in batch]
    if all(call.awaited for call in batch):
        fed = [ResumedCall(c.number, c.name, c.digest, t) for c, t in zip(batch, told, strict=True)]
        return Resumed(fed, whole=True)
    if len(batch) > 1:
        numbers = [call.number for call in batch]
        raise Failed("REPLAY_DIVERGED", f"calls {numbers} cannot have been answered together")
    return Answered(batch[0].name, batch[0].digest, told[0])
