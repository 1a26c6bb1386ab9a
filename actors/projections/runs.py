"""The runs of a realm, folded from its facts: a record each, small and of one size.

Of a run that has ended nothing else is kept; of one on its way, also the calls it waits for. Facts
come in the order of the journal, so every node has the same runs in the same order. Pure; reading
the journal is ``runs``', saying what a run waits for is ``waits``'.

The few words of a fact that lists of runs are made of.

Whatever else a fact says - programs, arguments, results - is skipped unread: a view reads the facts
of a whole realm. So is a fact nobody here knows, for a list is no place to fail. Names and meanings
are those of ``schemas/facts``; a test compares.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from rookery.actors.projections.checkpoint import version_of
from rookery.bus.ports import StoredMessage
from rookery.schemas.commands import RunsQuery
from rookery.schemas.errors import Refused
from rookery.schemas.facts import session, tool, turn
from rookery.schemas.lists import RunState
from rookery.schemas.machines.turn import TurnTerminalOutcome
from rookery.schemas.run import Language, RunStatus

__all__ = [
    "FAMILIES",
    "OpenRunCall",
    "RunFactView",
    "RunProjection",
    "RunRecord",
    "UnfinishedRun",
    "decode_facts",
]

FAMILIES: Final = frozenset({"session", "turn", "tool"})
"""Whose facts are about runs."""


class ErrorCodeView(Struct, gc=False):
    code: str = ""


class RunRequestView(Struct, gc=False):
    language: Language = Language.PYTHON


class RunResultView(Struct, gc=False):
    status: RunStatus = RunStatus.OK
    error: ErrorCodeView | None = None


class RequestedCallView(Struct, gc=False):
    operation_id: str
    name: str


class RunFactView(Struct, gc=False):
    """Any fact of these families."""

    type: str
    at_ms: int = 0
    run: str = ""
    # session
    request: RunRequestView | None = None
    # turn
    tool_count: int = 0
    calls: tuple[RequestedCallView, ...] = ()
    code: str = ""
    waits_for: tuple[str, ...] = ()
    result: RunResultView | None = None
    outcome: str = ""
    # tool
    operation_id: str = ""
    name: str = ""
    deadline_at_ms: int = 0
    may_act_until_ms: int | None = None
    # Text in a fact of turns, an object in the others.
    error: str | ErrorCodeView | None = None

    @property
    def error_code(self) -> str:
        """Text begins with its code."""
        error = self.error
        return error.code if isinstance(error, ErrorCodeView) else (error or "").partition(":")[0]


_decode_fact = msgspec.json.Decoder(list[RunFactView]).decode


def decode_facts(body: bytes) -> list[RunFactView]:
    """The facts of a message; none if it is sealed or damaged: then it does not say."""
    try:
        return _decode_fact(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []


FOLDS: Final = 2
PART_RUNS: Final = 2_048
"""A quarter of a mebibyte."""
_POSITION: Final = re.compile(r"([0-9]{1,19})\.([0-9]{1,19})")
"""Of 64 bits: a number of thousands of digits, which anybody may send, Python does not read."""


class RunRecord(Struct, gc=False, array_like=True):
    """What is listed of a run."""

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


class OpenRunCall(Struct, array_like=True):
    """A call that has not come to anything yet."""

    operation_id: str
    name: str
    since_ms: int
    """When it came to stand as it does."""
    phase: str = "asked"
    """``asked``, ``requested``, ``intended`` or ``recovery_required``."""
    acts_until_ms: int = 0
    """Until when its tool may act, as its last intent or ``recovery_required`` says."""


class UnfinishedRun(Struct, array_like=True):
    """What is known of a run on its way beside its record."""

    since_ms: int
    """When it came to stand as it does."""
    calls: dict[str, OpenRunCall]
    parked_for: tuple[str, ...] = ()
    """The operations it is parked for."""


class RunPart(Struct, array_like=True):
    """Of a table; runs on their way and who has which session stand in the first one."""

    runs: list[RunRecord]
    unfinished: dict[str, UnfinishedRun]
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
        self._unfinished: dict[str, UnfinishedRun] = {}
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
        """What there is, for a checkpoint."""
        yield _encode(RunPart([], self._unfinished, self._current))
        for first in range(0, len(self._runs), PART_RUNS):
            yield _encode(RunPart(self._runs[first : first + PART_RUNS], {}, {}))

    def empty(self) -> RunProjection:
        return RunProjection()

    def restore(self, part: bytes) -> None:
        """Take over a part of a checkpoint."""
        kept = _decode(part)
        self._unfinished |= kept.unfinished
        self._current |= kept.current
        for record in kept.runs:
            record.session, record.code = sys.intern(record.session), sys.intern(record.code)
            self._by_id[record.run_id] = record
        self._runs += kept.runs

    def get(self, run_id: str) -> RunRecord | None:
        return self._by_id.get(run_id)

    def unfinished(self, run_id: str) -> UnfinishedRun | None:
        """``None`` of a run that has ended."""
        return self._unfinished.get(run_id)

    def current_run(self, session_id: str) -> str | None:
        """The run that has the session."""
        return self._current.get(session_id)

    def page(self, query: RunsQuery) -> tuple[list[RunRecord], str | None]:
        """What is asked for, newest first, and where to go on."""
        found: list[RunRecord] = []
        for place in range(self._index_before(query.before) - 1, -1, -1):
            record = self._runs[place]
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
        given = _POSITION.fullmatch(before)
        if given is None:
            raise Refused(
                "INVALID_ARGUMENT",
                f"{before[:80]!r} is no position",
                hint="take `next` of the page before",
            )
        wanted = (int(given[1]), int(given[2]))
        return bisect_left(self._runs, wanted, key=lambda run: (run.sequence, run.number))

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
        self._unfinished[fact.run] = UnfinishedRun(fact.at_ms, {})
        return record

    def _on_accepted(self, record: RunRecord, fact: RunFactView) -> None:
        if fact.request is not None:
            record.language = fact.request.language

    def _on_prepared(self, record: RunRecord, fact: RunFactView) -> None:
        self._current[record.session] = record.run_id
        self._on_running(record, fact)

    def _on_started(self, record: RunRecord, fact: RunFactView) -> None:
        record.started_at_ms = fact.at_ms
        self._on_running(record, fact)

    def _on_running(self, record: RunRecord, fact: RunFactView) -> None:
        underway = self._unfinished.get(record.run_id)
        if underway is not None:
            record.status, record.code = RunState.RUNNING, ""
            underway.since_ms, underway.parked_for = fact.at_ms, ()

    def _on_calls_requested(self, record: RunRecord, fact: RunFactView) -> None:
        record.calls += fact.tool_count
        underway = self._unfinished.get(record.run_id)
        if underway is not None:
            underway.calls = {
                call.operation_id: OpenRunCall(call.operation_id, call.name, fact.at_ms)
                for call in fact.calls
            }

    def _on_parked(self, record: RunRecord, fact: RunFactView) -> None:
        underway = self._unfinished.get(record.run_id)
        if underway is not None:
            approval = fact.code == "WAITING_FOR_APPROVAL"
            record.status = RunState.WAITING_FOR_APPROVAL if approval else RunState.INTERRUPTED
            record.code = sys.intern(fact.code)
            underway.since_ms, underway.parked_for = fact.at_ms, fact.waits_for

    def _on_turn_ended(self, record: RunRecord, fact: RunFactView) -> None:
        status, code = _turn_result(fact)
        self._end(record, fact, status, code)

    def _on_session_free(self, record: RunRecord, fact: RunFactView) -> None:
        """The session is free again; how the run ended was said by its turn, if it had one."""
        if self._current.get(record.session) == record.run_id:
            del self._current[record.session]
        status, code = _ENDS_WITHOUT_TURN[fact.type]
        self._end(record, fact, status, code or fact.error_code)

    def _end(self, record: RunRecord, fact: RunFactView, status: RunState, code: str) -> None:
        if self._unfinished.pop(record.run_id, None) is not None:
            record.status, record.code = status, sys.intern(code)
            record.ended_at_ms = fact.at_ms

    def _end_all(self, session: str, fact: RunFactView) -> None:
        """Nobody knows any more what the session owed."""
        for run_id in tuple(self._unfinished):
            if (record := self._by_id[run_id]).session == session:
                self._end(record, fact, RunState.RUNTIME_ERROR, fact.code)
        self._current.pop(session, None)

    def _on_call_progress(self, record: RunRecord, fact: RunFactView) -> None:
        underway = self._unfinished.get(record.run_id)
        call = underway and underway.calls.get(fact.operation_id)
        if call:
            call.phase, call.since_ms = _CALL_PHASES[fact.type], fact.at_ms
            if fact.may_act_until_ms is not None:
                call.acts_until_ms = fact.may_act_until_ms
            elif fact.deadline_at_ms:
                call.acts_until_ms = fact.deadline_at_ms

    def _on_call_ended(self, record: RunRecord, fact: RunFactView) -> None:
        underway = self._unfinished.get(record.run_id)
        if underway is not None:
            underway.calls.pop(fact.operation_id, None)


def _matches(record: RunRecord, query: RunsQuery) -> bool:
    return (
        (query.session is None or record.session == query.session)
        and (query.status is None or record.status is query.status)
        and (query.language is None or record.language is query.language)
        and (query.since_ms is None or record.created_at_ms >= query.since_ms)
        and (query.until_ms is None or record.created_at_ms < query.until_ms)
    )


def _turn_result(fact: RunFactView) -> tuple[RunState, str]:
    """By the turn's last fact, which has no result where nobody drove the run, nor where the
    result was too large to stand in it."""
    match fact.result:
        case RunResultView(status=status, error=error):
            return RunState(status.value), "" if error is None else error.code
    if fact.type == _tag(turn.Completed):
        return RunState.OK, ""
    if fact.type == _tag(turn.Cancelled):
        return RunState.CANCELLED, "CANCELLED"
    return _OUTCOMES.get(fact.outcome, RunState.RUNTIME_ERROR), fact.error_code


def _tag(fact: type[Struct]) -> str:
    return str(fact.__struct_config__.tag)


_RESTARTED: Final = _tag(session.HistoryRestarted)
_OUTCOMES: Final = {
    TurnTerminalOutcome.TIME_BUDGET_EXCEEDED.value: RunState.TIMEOUT,
    TurnTerminalOutcome.BUDGET_EXHAUSTED.value: RunState.RESOURCE_EXHAUSTED,
}
_CALL_PHASES: Final = {
    _tag(tool.Requested): "requested",
    _tag(tool.IntentRecorded): "intended",
    _tag(tool.RecoveryRequired): "recovery_required",
    _tag(tool.RetryAllowed): "requested",
}
_ENDS_WITHOUT_TURN: Final = {
    _tag(session.RunCommitted): (RunState.OK, ""),
    _tag(session.RunFailed): (RunState.RUNTIME_ERROR, ""),
    _tag(session.RunRolledBack): (RunState.CANCELLED, "CANCELLED"),
    _tag(session.InputCancelled): (RunState.CANCELLED, "CANCELLED"),
    _tag(session.InputRefused): (RunState.RUNTIME_ERROR, ""),
}
"""How a run ended that had no turn to say so: as whoever waited for it was told."""

_KINDS: Final[dict[type[Struct], Callable[[RunProjection, RunRecord, RunFactView], Any]]] = {
    session.InputAccepted: RunProjection._on_accepted,
    session.RunPrepared: RunProjection._on_prepared,
    session.QueuedRunDrained: RunProjection._on_prepared,
    session.RunCommitted: RunProjection._on_session_free,
    session.RunFailed: RunProjection._on_session_free,
    session.RunRolledBack: RunProjection._on_session_free,
    session.InputCancelled: RunProjection._on_session_free,
    session.InputRefused: RunProjection._on_session_free,
    turn.Started: RunProjection._on_started,
    turn.ImmediateAppendStarted: RunProjection._on_started,
    turn.ImmediateContextStarted: RunProjection._on_started,
    turn.ToolCallsReturned: RunProjection._on_calls_requested,
    turn.Parked: RunProjection._on_parked,
    turn.Unparked: RunProjection._on_running,
    turn.Completed: RunProjection._on_turn_ended,
    turn.Failed: RunProjection._on_turn_ended,
    turn.Cancelled: RunProjection._on_turn_ended,
    tool.Requested: RunProjection._on_call_progress,
    tool.IntentRecorded: RunProjection._on_call_progress,
    tool.RecoveryRequired: RunProjection._on_call_progress,
    tool.RetryAllowed: RunProjection._on_call_progress,
    tool.Completed: RunProjection._on_call_ended,
    tool.Failed: RunProjection._on_call_ended,
    tool.Refused: RunProjection._on_call_ended,
    tool.Withdrawn: RunProjection._on_call_ended,
}
_FOLDS: Final = {_tag(kind): fold for kind, fold in _KINDS.items()}
