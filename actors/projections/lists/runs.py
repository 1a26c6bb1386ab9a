"""The runs of a realm, folded from its facts: a small record for each run.

An unfinished run has its progress beside the record, with the calls that it waits for. Facts come
in the order of the journal, so every node has the same runs in the same order. Ended runs but the
newest leave in pages (``pages``). The list skips facts that this version does not know, since
it must not fail. This module does no I/O.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from rookery.actors.projections.checkpoint import version_of
from rookery.actors.projections.pages import (
    PageEntry,
    ProjectionPage,
    RunPage,
    RunPageIndex,
    RunRecord,
    make_run_page,
)
from rookery.bus.ports import StoredMessage
from rookery.schemas.codec import fact_tag, wire_names
from rookery.schemas.envelope import Fact
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
from rookery.schemas.replies import RunState

__all__ = ["RunProjection"]

FAMILIES: Final = frozenset({"session", "turn", "tool"})
"""The families whose facts this projection reads."""
FOLDS: Final = 7
PAGE_RUNS: Final = 2_048
"""A quarter of a mebibyte before it is compressed, which takes 3 ms."""
RECENT_RUNS_MIN: Final = 2_048
"""So many ended runs stay in memory, and one page more: the first pages of a list need no read."""


class RunPart(Struct, array_like=True):
    """A part of the projection; its first part has the unfinished runs and the current run of each
    session."""

    runs: list[RunRecord]
    unfinished: dict[str, RunProgress]
    current: dict[str, str]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RunPart).decode
_decode_index = msgspec.msgpack.Decoder(RunPageIndex).decode


class RunProjection:
    """Oldest first."""

    name = "runs"
    version = version_of((FOLDS, PAGE_RUNS, RECENT_RUNS_MIN), RunPart, RunPageIndex)

    def __init__(self) -> None:
        self.pages: list[RunPage] = []
        """The ended runs that are not in memory."""
        self._runs: list[RunRecord] = []
        self._by_id: dict[str, RunRecord] = {}
        self._unfinished: dict[str, RunProgress] = {}
        self._current: dict[str, str] = {}

    def __len__(self) -> int:
        """How many runs are in memory."""
        return len(self._runs)

    @property
    def recent(self) -> Sequence[RunRecord]:
        """The runs in memory: the newest ones, and all that have not ended."""
        return self._runs

    def apply(self, stored: StoredMessage) -> None:
        """Fold a message of the journal."""
        if stored.entity.family not in FAMILIES:
            return
        key = sys.intern(stored.entity.key)
        for number, fact in enumerate(decode_facts(stored.body), 1):
            fold = _FOLDS.get(fact.type)
            if fold is not None and fact.run:
                record = self._by_id.get(fact.run)
                if record is None and fact.type in _BEGINS:
                    record = self._add_run(key, stored, number, fact)
                if record is not None:  # A run without it has ended long ago.
                    fold(self, record, fact)
            elif fact.type == _RESTARTED:
                self._end_all(key, fact)
        ended = len(self._runs) - len(self._unfinished) - len(self._current)
        if ended >= RECENT_RUNS_MIN + PAGE_RUNS:
            self._move_to_page()

    def parts(self) -> Iterator[bytes]:
        """The contents of a checkpoint."""
        yield _encode(RunPart([], self._unfinished, self._current))
        for first in range(0, len(self._runs), PAGE_RUNS):
            yield _encode(RunPart(self._runs[first : first + PAGE_RUNS], {}, {}))

    def _move_to_page(self) -> None:
        """Move the oldest runs that have ended, and that no fact can follow, to a page. The current
        run of a session may still be committed."""
        current = set(self._current.values())
        moved: list[RunRecord] = []
        staying: list[RunRecord] = []
        for index, run in enumerate(self._runs):
            if run.run_id in self._unfinished or run.run_id in current:
                staying.append(run)
                continue
            moved.append(self._by_id.pop(run.run_id))
            if len(moved) == PAGE_RUNS:
                self._runs = staying + self._runs[index + 1 :]
                break
        self.pages.append(make_run_page(moved))

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

    def restore_page(self, entry: PageEntry) -> None:
        """Add a stored page."""
        self.pages.append(ProjectionPage(entry.digest, _decode_index(entry.index), name=entry.name))

    def get(self, run_id: str) -> RunRecord | None:
        return self._by_id.get(run_id)

    def unfinished(self, run_id: str) -> RunProgress | None:
        """The progress of a run; ``None`` once the run has ended."""
        return self._unfinished.get(run_id)

    def current_run(self, session_id: str) -> str | None:
        """The run that occupies the session."""
        return self._current.get(session_id)

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
            by=sys.intern(fact.by),
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
            request = fact.request
            record.language, record.agent = request.language, sys.intern(request.agent)
            record.parent = "" if request.parent is None else request.parent.run_id
        record.input_source = sys.intern(fact.input_source)
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
_BEGINNINGS: Final[Sequence[type[Fact]]] = (
    session.InputAccepted,
    session.RunPrepared,
    session.QueuedRunDrained,
    turn.Started,
    turn.ImmediateAppendStarted,
    turn.ImmediateContextStarted,
)
_BEGINS: Final = frozenset(map(fact_tag, _BEGINNINGS))
"""A run is listed from the first of these that can be read."""
_FOLDS: Final = {fact_tag(kind): fold for kind, fold in _KINDS.items()}
