"""What a run waits for, who can end the waiting, and what they type.

Said of a run on its way and of nothing else. A program that computes waits for nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rookery.actors.projections.runs import OpenCall, RunRecord, RunTable, Underway
from rookery.schemas.lists import RunState, RunWait

__all__ = ["some_of", "wait_of"]

NAMES_MAX: Final = 5


def wait_of(table: RunTable, record: RunRecord) -> RunWait | None:
    """``None`` if the run waits for nothing."""
    underway = table.underway(record.run_id)
    if underway is None:
        return None
    if record.status is RunState.QUEUED:
        return _queued(record, underway, table.current(record.session))
    calls = list(underway.calls.values())
    parked = [call for call in calls if call.operation_id in underway.parked_for]
    if record.code:
        return _parked(record, underway, parked or calls)
    if unknown := [call for call in calls if call.stands == "recovery_required"]:
        return _parked_for("RECOVERY_REQUIRED", record, unknown[0].since_ms, unknown)
    return _at_work(record, calls) if calls else None


def _queued(record: RunRecord, underway: Underway, current: str | None) -> RunWait:
    if current is None:
        return RunWait(
            what="an input that wakes the session",
            since_ms=underway.since_ms,
            who="whoever uses the session",
            command=f"rookery run --session {record.session} -e CODE",
        )
    return RunWait(
        what=f"run {current}, which has the session",
        since_ms=underway.since_ms,
        who="that run, or whoever cancels it",
        command=f"rookery runs cancel {current}",
    )


def _at_work(record: RunRecord, calls: Sequence[OpenCall]) -> RunWait:
    under_way = [call for call in calls if call.stands == "intended"]
    what = _names(under_way) if under_way else f"a place for {_names(calls)}"
    waited_for = under_way or calls
    return RunWait(
        what=what,
        since_ms=min(call.since_ms for call in waited_for),
        who="the tool, or whoever cancels the run",
        command=f"rookery runs cancel {record.run_id}",
        operation_ids=tuple(call.operation_id for call in waited_for),
    )


class _Way(NamedTuple):
    """Out of being parked."""

    what: str
    who: str
    command: str


_WAYS: Final = {
    "RECOVERY_REQUIRED": _Way(
        "somebody to say what came of {calls}",
        "an operator who looks where the tool acts",
        "rookery runs resolve {run} {call} --completed JSON | --failed TEXT | --retry",
    ),
    "WAITING_FOR_APPROVAL": _Way(
        "approval of {calls}", "an approver", "rookery approvals approve {session}.{call}"
    ),
    "LEASE_REAUTH_REQUIRED": _Way(
        "credentials for {calls}", "whoever may log in", "rookery leases list"
    ),
    "NODE_DRAINED": _Way("a node to go on with it", "whoever runs nodes", "rookery up"),
}
_UNKNOWN: Final = _Way("{calls}", "who is not known here", "rookery runs cancel {run}")


def _parked(record: RunRecord, underway: Underway, calls: Sequence[OpenCall]) -> RunWait:
    return _parked_for(record.code, record, underway.since_ms, calls)


def _parked_for(code: str, record: RunRecord, since_ms: int, calls: Sequence[OpenCall]) -> RunWait:
    way = _WAYS.get(code, _UNKNOWN)
    names = {
        "calls": _names(calls),
        "run": record.run_id,
        "session": record.session,
        "call": calls[0].operation_id if calls else "CALL",
    }
    return RunWait(
        what=way.what.format(**names),
        since_ms=since_ms,
        who=way.who,
        command=way.command.format(**names),
        operation_ids=tuple(call.operation_id for call in calls),
        may_act_until_ms=max(
            (call.acts_until_ms for call in calls if call.stands == "recovery_required"),
            default=None,
        ),
    )


def _names(calls: Sequence[OpenCall]) -> str:
    return some_of([call.name for call in calls]) or "its calls"


def some_of(names: Sequence[str]) -> str:
    """The first of them, and how many there are beside."""
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
