"""What an unfinished run waits for, who can end the wait, and the command for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from rookery.actors.projections.run_pages import RunRecord
from rookery.actors.projections.runs import RunProjection
from rookery.schemas.facts.run_progress import (
    OpenCallPhase,
    OpenRunCall,
    RunProgress,
    RunStage,
    first_names,
)
from rookery.schemas.lists import RunState, RunWait

__all__ = ["run_wait"]


def run_wait(projection: RunProjection, record: RunRecord) -> RunWait | None:
    """What the run waits for; ``None`` if it computes or has ended."""
    progress = projection.unfinished(record.run_id)
    if progress is None:
        return None
    if record.status is RunState.QUEUED:
        return _queued(record, progress, projection.current_run(record.session))
    calls = list(progress.calls.values())
    if progress.stage is RunStage.PARKED:
        parked = [
            call
            for call in calls
            if call.operation_id in progress.parked_for and call.waits_for in ("", progress.code)
        ]
        return _waiting_for_remedy(progress.code, record, progress.since_ms, parked or calls)
    if unknown := [call for call in calls if call.phase is OpenCallPhase.RECOVERY_REQUIRED]:
        return _waiting_for_remedy("RECOVERY_REQUIRED", record, unknown[0].since_ms, unknown)
    if calls and all(call.phase is OpenCallPhase.AWAITED for call in calls):
        return _waiting_for_remedy(calls[0].waits_for, record, calls[0].since_ms, calls)
    return _waiting_for_tools(record, calls) if calls else None


def _queued(record: RunRecord, progress: RunProgress, current: str | None) -> RunWait:
    if current is None:
        return RunWait(
            what="an input that wakes the session",
            since_ms=progress.since_ms,
            who="a client that uses the session",
            command=f"rookery run --session {record.session} -e CODE",
        )
    return RunWait(
        what=f"run {current}, which occupies the session",
        since_ms=progress.since_ms,
        who="that run, or a client that cancels it",
        command=f"rookery runs cancel {current}",
    )


def _waiting_for_tools(record: RunRecord, calls: Sequence[OpenRunCall]) -> RunWait:
    running = [call for call in calls if call.phase is OpenCallPhase.INTENDED]
    what = _names(running) if running else f"a slot for {_names(calls)}"
    waited_for = running or calls
    return RunWait(
        what=what,
        since_ms=min(call.since_ms for call in waited_for),
        who="the tool, or a client that cancels the run",
        command=f"rookery runs cancel {record.run_id}",
        operation_ids=tuple(call.operation_id for call in waited_for),
    )


class _Remedy(NamedTuple):
    """How a parked run can continue."""

    what: str
    who: str
    command: str


_CANCEL: Final = "rookery runs cancel {run}"
_REMEDIES: Final = {
    "RECOVERY_REQUIRED": _Remedy(
        "an operator to resolve {calls}",
        "an operator who checks what the tool did",
        "rookery runs resolve {run} {call} --completed JSON | --failed TEXT | --retry",
    ),
    "WAITING_FOR_APPROVAL": _Remedy(
        "approval of {calls}", "an approver", "rookery approvals approve {session}.{call}"
    ),
    "WAITING_FOR_TIMER": _Remedy(
        "the end of {calls}", "its timer, or a client that cancels the run", _CANCEL
    ),
    "WAITING_FOR_LEASE": _Remedy(
        "a fresh credential of {lease} for {calls}",
        "the refresh of the lease",
        "rookery leases show {lease}",
    ),
    "LEASE_REAUTH_REQUIRED": _Remedy(
        "a login to {lease} for {calls}",
        "an operator who may log in",
        "rookery leases login {lease}",
    ),
    "NODE_DRAINED": _Remedy(
        "a node that continues it", "an operator who starts a node", "rookery up"
    ),
}
_UNKNOWN_REMEDY: Final = _Remedy("{calls}", "not known to this version", _CANCEL)


def _waiting_for_remedy(
    code: str, record: RunRecord, since_ms: int, calls: Sequence[OpenRunCall]
) -> RunWait:
    remedy = _REMEDIES.get(code, _UNKNOWN_REMEDY)
    names = {
        "calls": _names(calls),
        "run": record.run_id,
        "session": record.session,
        "call": calls[0].operation_id if calls else "CALL",
        "lease": next((call.lease for call in calls if call.lease), "LEASE"),
    }
    return RunWait(
        what=remedy.what.format(**names),
        since_ms=since_ms,
        who=remedy.who,
        command=remedy.command.format(**names),
        operation_ids=tuple(call.operation_id for call in calls),
        may_act_until_ms=max(
            (call.acts_until_ms for call in calls if call.phase is OpenCallPhase.RECOVERY_REQUIRED),
            default=None,
        ),
        until_ms=min((call.until_ms for call in calls if call.until_ms), default=None),
    )


def _names(calls: Sequence[OpenRunCall]) -> str:
    return first_names([call.name for call in calls]) or "its calls"
