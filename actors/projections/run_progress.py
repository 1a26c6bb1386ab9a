"""What a run waits for, who can end the waiting, and what they type.

Said of a run on its way and of nothing else. A program that computes waits for nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rookery.actors.projections.runs import OpenRunCall, RunProjection, RunRecord, UnfinishedRun
from rookery.schemas.lists import RunState, RunWait

__all__ = ["first_names", "run_wait"]

NAMES_MAX: Final = 5


def run_wait(table: RunProjection, record: RunRecord) -> RunWait | None:
    """``None`` if the run waits for nothing."""
    underway = table.unfinished(record.run_id)
    if underway is None:
        return None
    if record.status is RunState.QUEUED:
        return _queued(record, underway, table.current_run(record.session))
    calls = list(underway.calls.values())
    parked = [call for call in calls if call.operation_id in underway.parked_for]
    if record.code:
        return _parked(record, underway, parked or calls)
    if unknown := [call for call in calls if call.phase == "recovery_required"]:
        return _waiting_for_remedy("RECOVERY_REQUIRED", record, unknown[0].since_ms, unknown)
    return _waiting_for_tools(record, calls) if calls else None


def _queued(record: RunRecord, underway: UnfinishedRun, current: str | None) -> RunWait:
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


def _waiting_for_tools(record: RunRecord, calls: Sequence[OpenRunCall]) -> RunWait:
    under_way = [call for call in calls if call.phase == "intended"]
    what = _names(under_way) if under_way else f"a place for {_names(calls)}"
    waited_for = under_way or calls
    return RunWait(
        what=what,
        since_ms=min(call.since_ms for call in waited_for),
        who="the tool, or whoever cancels the run",
        command=f"rookery runs cancel {record.run_id}",
        operation_ids=tuple(call.operation_id for call in waited_for),
    )


class _Remedy(NamedTuple):
    """Out of being parked."""

    what: str
    who: str
    command: str


_REMEDIES: Final = {
    "RECOVERY_REQUIRED": _Remedy(
        "somebody to say what came of {calls}",
        "an operator who looks where the tool acts",
        "rookery runs resolve {run} {call} --completed JSON | --failed TEXT | --retry",
    ),
    "WAITING_FOR_APPROVAL": _Remedy(
        "approval of {calls}", "an approver", "rookery approvals approve {session}.{call}"
    ),
    "LEASE_REAUTH_REQUIRED": _Remedy(
        "credentials for {calls}", "whoever may log in", "rookery leases list"
    ),
    "NODE_DRAINED": _Remedy("a node to go on with it", "whoever runs nodes", "rookery up"),
}
_UNKNOWN_REMEDY: Final = _Remedy("{calls}", "who is not known here", "rookery runs cancel {run}")


def _parked(record: RunRecord, underway: UnfinishedRun, calls: Sequence[OpenRunCall]) -> RunWait:
    return _waiting_for_remedy(record.code, record, underway.since_ms, calls)


def _waiting_for_remedy(
    code: str, record: RunRecord, since_ms: int, calls: Sequence[OpenRunCall]
) -> RunWait:
    way = _REMEDIES.get(code, _UNKNOWN_REMEDY)
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
            (call.acts_until_ms for call in calls if call.phase == "recovery_required"),
            default=None,
        ),
    )


def _names(calls: Sequence[OpenRunCall]) -> str:
    return first_names([call.name for call in calls]) or "its calls"


def first_names(names: Sequence[str]) -> str:
    """The first of them, and how many there are beside."""
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")
