"""The runs of a realm, folded from its facts: a small record for each run.

An unfinished run has its progress beside the record, with the calls that it waits for. Facts come
in the order of the journal, so every node has the same runs in the same order. The list skips
facts that this version does not know, since it must not fail. This module does no I/O.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec
from msgspec import Struct

from rookery.actors.projections.checkpoint import version_of
from rookery.bus.ports import StoredMessage
from rookery.schemas.codec import fact_tag, wire_names
from rookery.schemas.commands import RunsQuery
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts import session, tool, turn
from rookery.schemas.facts.run_progress import (
    SESSION_ENDS,
    TURN_ENDS,
    RunFactView,
    RunProgress,
    RunStage,
    decode_facts,
    run_end,
)
from rookery.schemas.lists import RunState
from rookery.schemas.run import Language

__all__ = ["RunProjection", "RunRecord"]

FAMILIES: Final = frozenset({"session", "turn", "tool"})
"""The families whose facts this projection reads."""
FOLDS: Final = 3
PART_RUNS: Final = 2_048
"""A quarter of a mebibyte."""
_POSITION: Final = re.compile(r"([0-9]{1,19})\.([0-9]{1,19})")
"""Numbers of 64 bits: Python refuses to parse a number of thousands of digits."""


class RunRecord(Struct, gc=False, array_like=True):
    """A run as a row of a list."""

    run_id: str
    session: str
    sequence: int
    number: int
    """The fact it began with is ``<sequence>.<number>``."""
    created_at_ms: int
    started_at_ms: int = 0
    ended_at_ms: int = 0
    status: RunState = RunState.QUEUED
    code: str = ""
    language: Language = Language.PYTHON
    calls: int = 0

    @property
    def position(self) -> str:
        return f"{self.sequence}.{self.number}"


class RunPart(Struct, array_like=True):
    """A part of the projection; its first part has the unfinished runs and the current run of each
    session."""

    runs: list[RunRecord]
    unfinished: dict[str, RunProgress]
    current: dict[str, str]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RunPart).decode


class RunProjection:
    """Oldest first."""

    name = "runs"
    version = version_of(FOLDS, RunPart)

    def __init__(self) -> None:
        self._runs: list[RunRecord] = []
        self._by_id: dict[str, RunRecord] = {}
        self._unfinished: dict[str, RunProgress] = {}
        self._current: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def apply(self, stored: StoredMessage) -> None:
        """Fold a message of the journal."""
        if stored.entity.family not in FAMILIES:
            return
        key = sys.intern(stored.entity.key)
        for number, fact in enumerate(decode_facts(stored.body), 1):
            fold = _FOLDS.get(fact.type)
            if fold is not None and fact.run:
                record = self._by_id.get(fact.run) or self._add_run(key, stored, number, fact)
                fold(self, record, fact)
            elif fact.type == _RESTARTED:
                self._end_all(key, fact)

    def parts(self) -> Iterator[bytes]:
        """The contents of a checkpoint."""
        yield _encode(RunPart([], self._unfinished, self._current))
        for first in range(0, len(self._runs), PART_RUNS):
            yield _encode(RunPart(self._runs[first : first + PART_RUNS], {}, {}))

    def empty(self) -> RunProjection:
        return RunProjection()

    def restore(self, part: bytes) -> None:
        """Add a part of a checkpoint."""
        stored = _decode(part)
        self._unfinished |= stored.unfinished
        self._current |= stored.current
        for record in stored.runs:
            record.session, record.code = sys.intern(record.session), sys.intern(record.code)
            self._by_id[record.run_id] = record
        self._runs += stored.runs

    def get(self, run_id: str) -> RunRecord | None:
        return self._by_id.get(run_id)

    def unfinished(self, run_id: str) -> RunProgress | None:
        """The progress of a run; ``None`` once the run has ended."""
        return self._unfinished.get(run_id)

    def current_run(self, session_id: str) -> str | None:
        """The run that occupies the session."""
        return self._current.get(session_id)

    def page(self, query: RunsQuery) -> tuple[list[RunRecord], str | None]:
        """The runs of one page, newest first, and the position to continue from."""
        found: list[RunRecord] = []
        for index in range(self._index_before(query.before) - 1, -1, -1):
            record = self._runs[index]
            if not _matches(record, query):
                continue
            if len(found) == query.limit:
                return found, found[-1].position
            found.append(record)
        return found, None

    def _index_before(self, before: str | None) -> int:
        """How many runs are older than a position."""
        if before is None:
            return len(self._runs)
        match = _POSITION.fullmatch(before)
        if match is None:
            raise Refused(
                "INVALID_ARGUMENT",
                f"{before[:80]!r} is no position",
                hint="take `next` of the page before",
            )
        position = (int(match[1]), int(match[2]))
        return bisect_left(self._runs, position, key=lambda run: (run.sequence, run.number))

    # --- one fold a fact --------------------------------------------------------------------------

    def _add_run(
        self, key: str, stored: StoredMessage, number: int, fact: RunFactView
    ) -> RunRecord:
        record = RunRecord(
            run_id=fact.run,
            session=key,
            sequence=stored.sequence,
            number=number,
            created_at_ms=fact.at_ms,
        )
        self._runs.append(record)
        self._by_id[fact.run] = record
        self._unfinished[fact.run] = RunProgress(fact.at_ms)
        return record

    def _on_call(self, record: RunRecord, fact: RunFactView) -> None:
        if (progress := self._unfinished.get(record.run_id)) is not None:
            progress.apply(fact)

    def _on_progress(self, record: RunRecord, fact: RunFactView) -> None:
        if (progress := self._unfinished.get(record.run_id)) is not None:
            progress.apply(fact)
            record.status, record.code = _list_status(progress), progress.code

    def _on_accepted(self, record: RunRecord, fact: RunFactView) -> None:
        if fact.request is not None:
            record.language = fact.request.language
        self._on_progress(record, fact)

    def _on_prepared(self, record: RunRecord, fact: RunFactView) -> None:
        self._current[record.session] = record.run_id
        self._on_progress(record, fact)

    def _on_started(self, record: RunRecord, fact: RunFactView) -> None:
        record.started_at_ms = fact.at_ms
        self._on_progress(record, fact)

    def _on_calls_requested(self, record: RunRecord, fact: RunFactView) -> None:
        record.calls += fact.tool_count
        self._on_call(record, fact)

    def _on_turn_ended(self, record: RunRecord, fact: RunFactView) -> None:
        status, code = run_end(fact)
        self._end(record, fact, status, code)

    def _on_session_free(self, record: RunRecord, fact: RunFactView) -> None:
        """Free the session, and end the run if it had no turn."""
        if self._current.get(record.session) == record.run_id:
            del self._current[record.session]
        self._on_turn_ended(record, fact)

    def _end(self, record: RunRecord, fact: RunFactView, status: RunState, code: str) -> None:
        if self._unfinished.pop(record.run_id, None) is not None:
            record.status, record.code = status, sys.intern(code)
            record.ended_at_ms = fact.at_ms

    def _end_all(self, session_id: str, fact: RunFactView) -> None:
        """End every run of a session whose history was restarted."""
        for run_id in tuple(self._unfinished):
            if (record := self._by_id[run_id]).session == session_id:
                self._end(record, fact, RunState.RUNTIME_ERROR, fact.code)
        self._current.pop(session_id, None)


def _matches(record: RunRecord, query: RunsQuery) -> bool:
    return (
        (query.session is None or record.session == query.session)
        and (query.status is None or record.status is query.status)
        and (query.language is None or record.language is query.language)
        and (query.since_ms is None or record.created_at_ms >= query.since_ms)
        and (query.until_ms is None or record.created_at_ms < query.until_ms)
    )


def _list_status(progress: RunProgress) -> RunState:
    stage = progress.stage
    if stage is _RUNNING:
        return _LISTED_RUNNING
    if stage is RunStage.PARKED:
        approval = progress.code == "WAITING_FOR_APPROVAL"
        return RunState.WAITING_FOR_APPROVAL if approval else RunState.INTERRUPTED
    return _LISTED_QUEUED


_RUNNING: Final = RunStage.RUNNING
_LISTED_RUNNING, _LISTED_QUEUED = RunState.RUNNING, RunState.QUEUED
_RESTARTED: Final = fact_tag(session.HistoryRestarted)
_RunFold = Callable[[RunProjection, RunRecord, RunFactView], None]
_KINDS: Final[Mapping[type[Fact], _RunFold]] = {
    session.InputAccepted: RunProjection._on_accepted,
    session.RunPrepared: RunProjection._on_prepared,
    session.QueuedRunDrained: RunProjection._on_prepared,
    **dict.fromkeys(SESSION_ENDS, RunProjection._on_session_free),
    turn.Started: RunProjection._on_started,
    turn.ImmediateAppendStarted: RunProjection._on_started,
    turn.ImmediateContextStarted: RunProjection._on_started,
    turn.ToolCallsReturned: RunProjection._on_calls_requested,
    turn.Parked: RunProjection._on_progress,
    turn.Unparked: RunProjection._on_progress,
    **dict.fromkeys(TURN_ENDS, RunProjection._on_turn_ended),
    **dict.fromkeys(wire_names(tool.CallFact).values(), RunProjection._on_call),
}
_FOLDS: Final = {fact_tag(kind): fold for kind, fold in _KINDS.items()}
