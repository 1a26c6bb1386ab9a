"""Driving a node's runs: what the effects of turns come to.

One run a session at a time; each is a ``RunExecution``. Runs whose partition is lost are dropped as
they stand, for the next owner takes them up from the record. It owns no rule of turns and no memory
of sessions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET

from rookery.actors.execution.calls import CallNotifierPort
from rookery.actors.execution.driver import Driver
from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.execution.run_execution import RunExecution, SessionCachePort
from rookery.actors.kernel.decider import Effect
from rookery.actors.kernel.effect_runner import EffectHandler
from rookery.actors.kernel.history_restart import NotifyHistoryBroken
from rookery.actors.kernel.local_ask import AskActor
from rookery.actors.messages import (
    ActiveRunQuery,
    ActiveRunView,
    CallsQuery,
    CallsView,
    RecordRunEnd,
    ReplySubjectsQuery,
    ReplySubjectsView,
    ReportBrokenHistory,
    RunEndRecorded,
    UnparkRun,
)
from rookery.actors.turns.effects import (
    ContinueRun,
    ExecuteRun,
    ReportTurnOver,
    SendInterim,
    SendResult,
    StopRun,
)
from rookery.actors.turns.run_state import end_unexecuted
from rookery.bus.ports import Blobs, ReplyMessage
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CODES, CodedError
from rookery.schemas.replies import RunAnswer
from rookery.schemas.run import (
    CallStatus,
    ErrorObject,
    ExternalCallRecord,
    Metrics,
    RunResult,
    RunStatus,
    SideEffect,
)

__all__ = ["RunExecutor"]

log = logging.getLogger(__name__)

NOT_OURS: Final = "PARTITION_UNOWNED"


@dataclass(kw_only=True)
class RunExecutor:
    """One a node; lives on the bus's loop."""

    ask: AskActor
    call_notifier: CallNotifierPort
    blobs: Blobs
    reader: RunHistoryReader
    session_cache: SessionCachePort
    driver: Callable[[], Driver]
    require_tools: Callable[[RunEnvironment], None]
    """``Refused`` if what a run was given is no more, ``NotExecutableHere`` if it only is not
    here."""
    publish_result: Callable[[str, RunResult], None]
    """What a run has come to, for those who are about to ask."""
    send_replies: Callable[[Sequence[ReplyMessage]], None]
    eviction_candidates: Callable[[Callable[[str], bool]], Sequence[str]]
    """Sessions the memory should do without, but for those that are busy."""
    _executions: dict[str, RunExecution] = field(default_factory=dict)
    _failed_runs: set[str] = field(default_factory=set)
    """Runs whose driving has failed, and is to be tried again."""
    _session_locks: WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=WeakValueDictionary
    )
    _evicting: asyncio.Task[None] | None = None

    @property
    def handlers(self) -> Mapping[type[Effect], EffectHandler]:
        return {
            ExecuteRun: self.execute,
            ContinueRun: self.continue_run,
            ReportTurnOver: self.report_turn_over,
            NotifyHistoryBroken: self.notify_history_broken,
            StopRun: self.stop,
            SendResult: self.send_result,
            SendInterim: self.send_interim,
        }

    @property
    def executing(self) -> int:
        """How many runs this node executes now."""
        return len(self._executions)

    async def execute(self, effect: ExecuteRun) -> None:
        """Take the run's steps until it has ended or is parked."""
        turn, run_id = self._session_lock(effect.session), effect.view.run_id
        stale = turn.locked() or run_id in self._failed_runs
        async with turn:
            view = effect.view
            if stale:  # The run may have gone on since.
                self._failed_runs.discard(run_id)
                query = ActiveRunQuery(run_id=run_id)
                view = await self.ask("turn", effect.session, query, ActiveRunView)
            if view.ended or view.parked or view.offer is UNSET:
                return
            if view.cancelling:
                await self._end_unexecuted(effect.session, view)
                return
            try:
                await self._execute(effect.session, view, view.offer)
            except Exception:
                self._failed_runs.add(run_id)
                raise
        surplus = self.eviction_candidates(self._session_locks.__contains__)
        if surplus and (self._evicting is None or self._evicting.done()):
            self._evicting = asyncio.create_task(self._evict_surplus(surplus))

    async def continue_run(self, effect: ContinueRun) -> None:
        """Whoever was to drive the run may be gone, or may be doing so here."""
        run_id = effect.run_id
        if run_id not in self._executions:
            view = await self.ask(
                "turn", effect.session, ActiveRunQuery(run_id=run_id), ActiveRunView
            )
            if run_id not in self._executions:
                await self.execute(ExecuteRun(key=effect.key, session=effect.session, view=view))

    async def report_turn_over(self, effect: ReportTurnOver) -> None:
        await self.ask(
            "session", effect.session, RecordRunEnd(run_id=effect.run_id), RunEndRecorded
        )

    async def notify_history_broken(self, effect: NotifyHistoryBroken) -> None:
        """The session can do without its turn, and the turn without everybody else."""
        session, family = effect.session, effect.family
        said = ReportBrokenHistory(family=family, code=effect.code, message=effect.message)
        if family == "turn":
            await self.ask("session", session, said, RunEndRecorded)
            return
        view = await self.ask("turn", session, said, ActiveRunView)
        work = self._executions.get(view.run_id)
        if view.ended and work is not None:
            await work.stop()

    async def stop(self, effect: StopRun) -> None:
        """Somebody wants the run to end now."""
        work = self._executions.get(effect.run_id)
        if work is not None:
            await work.stop()
            return
        query = ActiveRunQuery(run_id=effect.run_id)
        view = await self.ask("turn", effect.session, query, ActiveRunView)
        if view.cancelling:
            await self._end_unexecuted(effect.session, view)

    async def evict(self, session: str) -> None:
        """The session leaves the node's memory: it is idle, another node's, or one too many."""
        async with self._session_lock(session):
            await self.session_cache.evict(session)

    async def can_continue(self, session: str, run_id: str) -> bool:
        """Before a call of the run is made that somebody has allowed: whether there is anything for
        it to go on with. If there never will be, the run ends, and nothing was executed."""
        if run_id in self._executions:
            return True
        view = await self.ask("turn", session, ActiveRunQuery(run_id=run_id), ActiveRunView)
        if not view.parked or view.ended or view.offer is UNSET:
            return not view.ended
        try:
            self.require_tools(view.offer)
            await self.session_cache.require(view.offer)
        except CodedError as error:
            if CODES[error.code].retryable:
                raise
            log.warning("a run cannot go on", extra={"run": run_id, "code": error.code})
            async with self._session_lock(session):
                await RunExecution(self, self.driver(), session, view).fail(error)
            return False
        return True

    async def send_result(self, effect: SendResult) -> None:
        self.publish_result(effect.run_id, effect.result)

    async def send_interim(self, effect: SendInterim) -> None:
        """Not an end: who wants that is told it later, too. What came while the run was on its way
        to rest has woken nobody."""
        query = CallsQuery(run_id=effect.run_id)
        known = (await self.ask("tool", effect.session, query, CallsView)).calls
        waited = {call.operation_id for call in effect.calls}
        if any(call.operation_id in waited and call.outcome is not UNSET for call in known):
            ready = UnparkRun(run_id=effect.run_id)
            await self.ask("turn", effect.session, ready, ActiveRunView)
            return
        who = ReplySubjectsQuery(run_id=effect.run_id)
        waiting = await self.ask("session", effect.session, who, ReplySubjectsView)
        view = await self.ask(
            "turn", effect.session, ActiveRunQuery(run_id=effect.run_id), ActiveRunView
        )
        offered = () if view.offer is UNSET else view.offer.tools
        touches = {tool.name: tool.side_effect for tool in offered}
        said = encode_json(interim_reply(effect, touches, len(known)))
        self.send_replies([ReplyMessage(reply_to, said) for reply_to in waiting.reply_to])

    async def _evict_surplus(self, surplus: Sequence[str]) -> None:
        """Beside the runs. Whoever wants a session meanwhile has it, or has it brought back."""
        for session in surplus:
            if session not in self._session_locks:
                await self.evict(session)

    def _session_lock(self, session: str) -> asyncio.Lock:
        """Whoever has it may use the session's sandbox."""
        lock = self._session_locks.get(session)
        if lock is None:
            lock = self._session_locks[session] = asyncio.Lock()
        return lock

    async def _execute(self, session: str, view: ActiveRunView, offer: RunEnvironment) -> None:
        """What is ours to mend is tried again; what no trying again would mend ends the run."""
        work = self._executions[view.run_id] = RunExecution(self, self.driver(), session, view)
        try:
            try:
                self.require_tools(offer)
                await work.run()
            except CodedError as error:
                if error.code == NOT_OURS or CODES[error.code].retryable:
                    raise
                log.warning(
                    "a run cannot be driven", extra={"run": view.run_id, "code": error.code}
                )
                await work.fail(error)
        except BaseException:
            await work.abandon()
            raise
        finally:
            del self._executions[view.run_id]

    async def _end_unexecuted(self, session: str, view: ActiveRunView) -> None:
        """Nobody drives it: it is parked, or was about to begin."""
        await self.ask("turn", session, end_unexecuted(view), ActiveRunView)


def interim_reply(effect: SendInterim, touches: Mapping[str, SideEffect], calls: int) -> RunAnswer:
    """How a parked run stands, as its result would look if that were its end: of its calls, those
    it waits for. ``touches``: what each tool may touch; ``calls``: how many it has made."""
    for_approval = effect.code == "WAITING_FOR_APPROVAL"
    status = RunStatus.WAITING_FOR_APPROVAL if for_approval else RunStatus.INTERRUPTED
    names = ", ".join(call.name for call in effect.calls)
    error = ErrorObject(
        code=effect.code,
        message=f"the run waits, and nothing of it is held in memory: {names}",
        hint=f"rookery runs show {effect.run_id}",
    )
    result = RunResult.failed(status, error, "", Metrics(external_calls_count=calls))
    records = tuple(
        ExternalCallRecord(
            name=call.name,
            side_effect=touches.get(call.name, SideEffect.NONE),
            status=CallStatus.APPROVAL_PENDING if for_approval else CallStatus.ERROR,
            request_digest=call.digest,
        )
        for call in effect.calls
    )
    told = msgspec.structs.replace(result, external_calls=records, snapshot_id=effect.snapshot_id)
    return RunAnswer.of(told, effect.run_id, effect.session)
