"""The runs of a realm, folded from its facts: a record each, small and of one size.

Of a run that has ended nothing else is kept; of one on its way, also the calls it waits for. Facts
come in the order of the journal, so every node has the same runs in the same order. Pure; reading
the journal is ``runs``', saying what a run waits for is ``waits``'.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct

from rookery.actors.projections.checkpoint import form_of
from rookery.actors.projections.run_facts import FAMILIES, Ended, Told, told
from rookery.bus.ports import Stored
from rookery.schemas.commands import RunsQuery
from rookery.schemas.errors import Refused
from rookery.schemas.facts import session, tool, turn
from rookery.schemas.lists import RunState
from rookery.schemas.machines.turn import TurnTerminalOutcome
from rookery.schemas.run import Language

__all__ = ["OpenCall", "RunRecord", "RunTable", "Underway"]


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


class OpenCall(Struct, array_like=True):
    """A call that has not come to anything yet."""

    operation_id: str
    name: str
    since_ms: int
    """When it came to stand as it does."""
    stands: str = "asked"
    """``asked``, ``requested``, ``intended`` or ``recovery_required``."""
    acts_until_ms: int = 0
    """Until when its tool may act, as its last intent or ``recovery_required`` says."""


class Underway(Struct, array_like=True):
    """What is known of a run on its way beside its record."""

    since_ms: int
    """When it came to stand as it does."""
    calls: dict[str, OpenCall]
    parked_for: tuple[str, ...] = ()
    """The operations it is parked for."""


class RunPart(Struct, array_like=True):
    """Of a table; runs on their way and who has which session stand in the first one."""

    runs: list[RunRecord]
    underway: dict[str, Underway]
    current: dict[str, str]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RunPart).decode


class RunTable:
    """Oldest first."""

    name = "runs"
    form = form_of(FOLDS, RunPart)

    def __init__(self) -> None:
        self._runs: list[RunRecord] = []
        self._by_id: dict[str, RunRecord] = {}
        self._underway: dict[str, Underway] = {}
        self._current: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def take(self, stored: Stored) -> None:
        """Fold a message of the journal."""
        if stored.entity.family not in FAMILIES:
            return
        key = sys.intern(stored.entity.key)
        for number, fact in enumerate(told(stored.body), 1):
            fold = _FOLDS.get(fact.type)
            if fold is not None and fact.run:
                record = self._by_id.get(fact.run) or self._begin(key, stored, number, fact)
                fold(self, record, fact)
            elif fact.type == _RESTARTED:
                self._end_all(key, fact)

    def parts(self) -> Iterator[bytes]:
        """What there is, for a checkpoint."""
        yield _encode(RunPart([], self._underway, self._current))
        for first in range(0, len(self._runs), PART_RUNS):
            yield _encode(RunPart(self._runs[first : first + PART_RUNS], {}, {}))

    def anew(self) -> RunTable:
        return RunTable()

    def adopt(self, part: bytes) -> None:
        """Take over a part of a checkpoint."""
        kept = _decode(part)
        self._underway |= kept.underway
        self._current |= kept.current
        for record in kept.runs:
            record.session, record.code = sys.intern(record.session), sys.intern(record.code)
            self._by_id[record.run_id] = record
        self._runs += kept.runs

    def of(self, run_id: str) -> RunRecord | None:
        return self._by_id.get(run_id)

    def underway(self, run_id: str) -> Underway | None:
        """``None`` of a run that has ended."""
        return self._underway.get(run_id)

    def current(self, session_id: str) -> str | None:
        """The run that has the session."""
        return self._current.get(session_id)

    def page(self, query: RunsQuery) -> tuple[list[RunRecord], str | None]:
        """What is asked for, newest first, and where to go on."""
        found: list[RunRecord] = []
        for place in range(self._place(query.before) - 1, -1, -1):
            record = self._runs[place]
            if not _is_asked_for(record, query):
                continue
            if len(found) == query.limit:
                return found, found[-1].position
            found.append(record)
        return found, None

    def _place(self, before: str | None) -> int:
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

    def _begin(self, key: str, stored: Stored, number: int, fact: Told) -> RunRecord:
        record = RunRecord(
            run_id=fact.run,
            session=key,
            sequence=stored.sequence,
            number=number,
            created_at_ms=fact.at_ms,
        )
        self._runs.append(record)
        self._by_id[fact.run] = record
        self._underway[fact.run] = Underway(fact.at_ms, {})
        return record

    def _accept(self, record: RunRecord, fact: Told) -> None:
        if fact.request is not None:
            record.language = fact.request.language

    def _take_up(self, record: RunRecord, fact: Told) -> None:
        self._current[record.session] = record.run_id
        self._go_on(record, fact)

    def _start(self, record: RunRecord, fact: Told) -> None:
        record.started_at_ms = fact.at_ms
        self._go_on(record, fact)

    def _go_on(self, record: RunRecord, fact: Told) -> None:
        underway = self._underway.get(record.run_id)
        if underway is not None:
            record.status, record.code = RunState.RUNNING, ""
            underway.since_ms, underway.parked_for = fact.at_ms, ()

    def _ask_for_calls(self, record: RunRecord, fact: Told) -> None:
        record.calls += fact.tool_count
        underway = self._underway.get(record.run_id)
        if underway is not None:
            underway.calls = {
                call.operation_id: OpenCall(call.operation_id, call.name, fact.at_ms)
                for call in fact.calls
            }

    def _park(self, record: RunRecord, fact: Told) -> None:
        underway = self._underway.get(record.run_id)
        if underway is not None:
            approval = fact.code == "WAITING_FOR_APPROVAL"
            record.status = RunState.WAITING_FOR_APPROVAL if approval else RunState.INTERRUPTED
            record.code = sys.intern(fact.code)
            underway.since_ms, underway.parked_for = fact.at_ms, fact.waits_for

    def _end_turn(self, record: RunRecord, fact: Told) -> None:
        status, code = _end_of(fact)
        self._end(record, fact, status, code)

    def _free(self, record: RunRecord, fact: Told) -> None:
        """The session is free again; how the run ended was said by its turn, if it had one."""
        if self._current.get(record.session) == record.run_id:
            del self._current[record.session]
        status, code = _UNTURNED[fact.type]
        self._end(record, fact, status, code or fact.error_code)

    def _end(self, record: RunRecord, fact: Told, status: RunState, code: str) -> None:
        if self._underway.pop(record.run_id, None) is not None:
            record.status, record.code = status, sys.intern(code)
            record.ended_at_ms = fact.at_ms

    def _end_all(self, session: str, fact: Told) -> None:
        """Nobody knows any more what the session owed."""
        for run_id in tuple(self._underway):
            if (record := self._by_id[run_id]).session == session:
                self._end(record, fact, RunState.RUNTIME_ERROR, fact.code)
        self._current.pop(session, None)

    def _move_call(self, record: RunRecord, fact: Told) -> None:
        underway = self._underway.get(record.run_id)
        call = underway and underway.calls.get(fact.operation_id)
        if call:
            call.stands, call.since_ms = _STANDS[fact.type], fact.at_ms
            if fact.may_act_until_ms is not None:
                call.acts_until_ms = fact.may_act_until_ms
            elif fact.deadline_at_ms:
                call.acts_until_ms = fact.deadline_at_ms

    def _end_call(self, record: RunRecord, fact: Told) -> None:
        underway = self._underway.get(record.run_id)
        if underway is not None:
            underway.calls.pop(fact.operation_id, None)


def _is_asked_for(record: RunRecord, query: RunsQuery) -> bool:
    return (
        (query.session is None or record.session == query.session)
        and (query.status is None or record.status is query.status)
        and (query.language is None or record.language is query.language)
        and (query.since_ms is None or record.created_at_ms >= query.since_ms)
        and (query.until_ms is None or record.created_at_ms < query.until_ms)
    )


def _end_of(fact: Told) -> tuple[RunState, str]:
    """By the turn's last fact, which has no result where nobody drove the run, nor where the
    result was too large to stand in it."""
    match fact.result:
        case Ended(status=status, error=error):
            return RunState(status.value), "" if error is None else error.code
    if fact.type == _name(turn.Completed):
        return RunState.OK, ""
    if fact.type == _name(turn.Cancelled):
        return RunState.CANCELLED, "CANCELLED"
    return _OUTCOMES.get(fact.outcome, RunState.RUNTIME_ERROR), fact.error_code


def _name(fact: type[Struct]) -> str:
    return str(fact.__struct_config__.tag)


_RESTARTED: Final = _name(session.HistoryRestarted)
_OUTCOMES: Final = {
    TurnTerminalOutcome.TIME_BUDGET_EXCEEDED.value: RunState.TIMEOUT,
    TurnTerminalOutcome.BUDGET_EXHAUSTED.value: RunState.RESOURCE_EXHAUSTED,
}
_STANDS: Final = {
    _name(tool.Requested): "requested",
    _name(tool.IntentRecorded): "intended",
    _name(tool.RecoveryRequired): "recovery_required",
    _name(tool.RetryAllowed): "requested",
}
_UNTURNED: Final = {
    _name(session.RunCommitted): (RunState.OK, ""),
    _name(session.RunFailed): (RunState.RUNTIME_ERROR, ""),
    _name(session.RunRolledBack): (RunState.CANCELLED, "CANCELLED"),
    _name(session.InputCancelled): (RunState.CANCELLED, "CANCELLED"),
    _name(session.InputRefused): (RunState.RUNTIME_ERROR, ""),
}
"""How a run ended that had no turn to say so: as whoever waited for it was told."""

_KINDS: Final[dict[type[Struct], Callable[[RunTable, RunRecord, Told], Any]]] = {
    session.InputAccepted: RunTable._accept,
    session.RunPrepared: RunTable._take_up,
    session.QueuedRunDrained: RunTable._take_up,
    session.RunCommitted: RunTable._free,
    session.RunFailed: RunTable._free,
    session.RunRolledBack: RunTable._free,
    session.InputCancelled: RunTable._free,
    session.InputRefused: RunTable._free,
    turn.Started: RunTable._start,
    turn.ImmediateAppendStarted: RunTable._start,
    turn.ImmediateContextStarted: RunTable._start,
    turn.ToolCallsReturned: RunTable._ask_for_calls,
    turn.Parked: RunTable._park,
    turn.Unparked: RunTable._go_on,
    turn.Completed: RunTable._end_turn,
    turn.Failed: RunTable._end_turn,
    turn.Cancelled: RunTable._end_turn,
    tool.Requested: RunTable._move_call,
    tool.IntentRecorded: RunTable._move_call,
    tool.RecoveryRequired: RunTable._move_call,
    tool.RetryAllowed: RunTable._move_call,
    tool.Completed: RunTable._end_call,
    tool.Failed: RunTable._end_call,
    tool.Refused: RunTable._end_call,
    tool.Withdrawn: RunTable._end_call,
}
_FOLDS: Final = {_name(kind): fold for kind, fold in _KINDS.items()}
