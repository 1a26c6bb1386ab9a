"""The query ``runs``, and what an unfinished run waits for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec import UNSET

from rookery.actors.projections.checkpoint import CheckpointStore
from rookery.actors.projections.lists.runs import RunProjection
from rookery.actors.projections.pages import (
    PageLost,
    RunPage,
    RunPosition,
    RunRecord,
    decode_runs,
    find_run,
    newest_runs,
)
from rookery.actors.projections.projector import Projector
from rookery.bus.ports import Delivery, Filter, Journal
from rookery.schemas.codec import decode_command
from rookery.schemas.commands import RunsQuery
from rookery.schemas.envelope import InputSource
from rookery.schemas.errors import Refused
from rookery.schemas.facts.run_progress import (
    OpenCallPhase,
    OpenRunCall,
    RunProgress,
    RunStage,
    first_names,
)
from rookery.schemas.ids import check_session_id
from rookery.schemas.replies import RunList, RunState, RunView, RunWait

__all__ = [
    "RunQueryHandler",
    "run_wait",
]

# --- run progress ---------------------------------------------------------------------------------

# What an unfinished run waits for, who can end the wait, and the command for it.


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
        return _waiting_for_remedy(
            progress.code, record, progress.since_ms, parked or calls, progress.parked_for
        )
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
    "WAITING_FOR_TASK": _Remedy(
        "the end of {calls}", "the surface of its tool, or a client that cancels the run", _CANCEL
    ),
    "WAITING_FOR_MODEL": _Remedy(
        "the time at which {calls} is asked again",
        "its timer, or a client that cancels the run",
        _CANCEL,
    ),
    "RECOVERY_WORK_EXCEEDED": _Remedy(
        "an operator, as the answers of {calls} were lost too often",
        "an operator who knows what another question may cost",
        "rookery runs resolve {run} {call} --retry | --failed TEXT",
    ),
    "WAITING_FOR_AGENT": _Remedy(
        "the run of {calls}",
        "that run, or a client that cancels this one",
        "rookery runs show {run} --tree",
    ),
    "WAITING_FOR_PEER": _Remedy(
        "{envelope} for {calls}",
        "{peer}, its deadline, or a client that cancels the run",
        "rookery peers exchanges {session}",
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
    "HOOK_INTERRUPTED": _Remedy(
        "hook {hook}, which has failed",
        "an operator who sees that the hook answers again, or sets its mode",
        "rookery hooks resume {hook}",
    ),
    "HOOK_EXECUTOR_MISSING": _Remedy(
        "hook {hook}, which no node has that owned the session",
        "an operator who starts a node with its registry, or removes it",
        "rookery hooks resume {hook}",
    ),
    "NODE_DRAINED": _Remedy(
        "a node that continues it", "an operator who starts a node", "rookery up"
    ),
}
_UNKNOWN_REMEDY: Final = _Remedy("{calls}", "not known to this version", _CANCEL)


def _waiting_for_remedy(
    code: str,
    record: RunRecord,
    since_ms: int,
    calls: Sequence[OpenRunCall],
    parked_for: Sequence[str] = (),
) -> RunWait:
    remedy = _REMEDIES.get(code, _UNKNOWN_REMEDY)
    names = {
        "calls": _names(calls),
        "run": record.run_id,
        "session": record.session,
        "call": calls[0].operation_id if calls else "CALL",
        "hook": parked_for[0] if parked_for else "HOOK",
        "lease": next((call.lease for call in calls if call.lease), "LEASE"),
        "peer": first_names(sorted({call.peer for call in calls if call.peer})) or "a peer",
        "envelope": _envelope(calls),
    }
    return RunWait(
        what=remedy.what.format(**names),
        since_ms=since_ms,
        who=remedy.who.format(**names),
        command=remedy.command.format(**names),
        operation_ids=tuple(call.operation_id for call in calls),
        may_act_until_ms=max(
            (call.acts_until_ms for call in calls if call.phase is OpenCallPhase.RECOVERY_REQUIRED),
            default=None,
        ),
        until_ms=min((call.until_ms for call in calls if call.until_ms), default=None),
    )


def _envelope(calls: Sequence[OpenRunCall]) -> str:
    """The envelopes that calls wait for: responses by peer and intent, or what they receive."""
    awaited = {f"{call.peer} to {call.intent}" for call in calls if call.peer and call.intent}
    if awaited:
        return f"the response of {first_names(sorted(awaited))}"
    return "an envelope"


def _names(calls: Sequence[OpenRunCall]) -> str:
    return first_names([call.name for call in calls]) or "its calls"


# --- run queries ----------------------------------------------------------------------------------

# The query ``runs``: all runs of a realm, from every node. It also works without a node.
#
# Runs that have left memory are read from the pages of a checkpoint. If a page is lost, all runs
# are folded again from the journal.


DECODED_PAGES_MAX: Final = 3
"""Two thirds of a mebibyte each."""
_POSITION: Final = re.compile(r"([0-9]{1,19})\.([0-9]{1,19})")
"""Numbers of 64 bits: Python refuses to parse a number of thousands of digits."""


class RunQueryHandler:
    """Replies to the query ``runs``. Runs on the bus's loop."""

    def __init__(self, projector: Projector) -> None:
        """``projector`` has a ``RunProjection``."""
        self._projector = projector
        self._decoded: dict[str, Sequence[RunRecord]] = {}
        """The pages read last, by digest: a client that pages through a list reads each twice."""

    @classmethod
    def without_node(
        cls, journal: Journal, *, session: str | None = None, store: CheckpointStore | None = None
    ) -> RunQueryHandler:
        """A handler that reads the journal of one ``session`` or of all.

        For all sessions it starts at the checkpoint in ``store``, if there is one.
        """
        store = store if session is None else None
        return cls(Projector(journal, [RunProjection()], Filter(key=session), store))

    async def list(self, query: RunsQuery) -> RunList:
        """The matching runs, newest first."""
        await self._projector.refresh()
        return await self._listed(query)

    async def _listed(self, query: RunsQuery) -> RunList:
        """The matching runs, as far as the journal was read."""
        if query.session is not None:
            check_session_id(query.session)
        before = None if query.before is None else _parse_position(query.before)
        table = self._projector.projection(RunProjection)
        try:
            return await self._find(table, query, before)
        except PageLost:
            await self._projector.rebuild(table)
            table = self._projector.projection(RunProjection)
            return await self._find(table, query, before)

    async def _find(
        self, table: RunProjection, query: RunsQuery, before: RunPosition | None
    ) -> RunList:
        read = self._read_page
        following = None
        if query.run_id is not None:
            record = table.get(query.run_id) or await find_run(table.pages, read, query.run_id)
            records = [] if record is None else [record]
        else:
            records = await newest_runs(table.recent, table.pages, read, query, before)
            if len(records) > query.limit:
                records = records[: query.limit]
                following = records[-1].position
        return RunList(runs=tuple(_run_view(table, record) for record in records), next=following)

    async def _read_page(self, page: RunPage) -> Sequence[RunRecord]:
        runs = self._decoded.pop(page.digest, None)
        if runs is None:
            runs = decode_runs(await self._projector.read_page(page))
        self._decoded[page.digest] = runs
        if len(self._decoded) > DECODED_PAGES_MAX:
            del self._decoded[next(iter(self._decoded))]
        return runs

    async def handle(self, delivery: Delivery) -> RunList:
        """The query ``runs``."""
        await self._projector.refresh_for_query()
        return await self._listed(
            decode_command(delivery.body, RunsQuery, content_type=delivery.content_type)
        )


def _parse_position(text: str) -> RunPosition:
    match = _POSITION.fullmatch(text)
    if match is None:
        raise Refused(
            "INVALID_ARGUMENT",
            f"{text[:80]!r} is no position",
            hint="take `next` of the page before",
        )
    return int(match[1]), int(match[2])


def _run_view(table: RunProjection, record: RunRecord) -> RunView:
    return RunView(
        run_id=record.run_id,
        session_id=record.session,
        status=record.status,
        code=record.code or None,
        language=record.language,
        created_at_ms=record.created_at_ms,
        started_at_ms=record.started_at_ms or None,
        ended_at_ms=record.ended_at_ms or None,
        calls=record.calls,
        by=record.by or None,
        input_source=InputSource(record.input_source) if record.input_source else UNSET,
        waits_for=run_wait(table, record),
        position=record.position,
        agent=record.agent or UNSET,
        parent_run_id=record.parent or UNSET,
    )
