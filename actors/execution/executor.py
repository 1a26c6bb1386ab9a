"""``RunExecutor``: performs the effects of turns: it executes the runs of a node.

A session executes one run at a time; each is a ``RunExecution``. When the node loses a partition
its runs are dropped, and the next owner continues them from their recorded steps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET

from rookery.actors.execution.calls import CallNotifierPort
from rookery.actors.execution.driver import Driver
from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.execution.result_sender import SendOutput
from rookery.actors.execution.run_execution import Resumptions, RunExecution
from rookery.actors.execution.run_hooks import HOOK_EXECUTOR_MISSING
from rookery.actors.execution.session_cache import ProgramCachePort, SessionCachePort
from rookery.actors.execution.step_recorder import parked_output
from rookery.actors.histories import NotifyHistoryBroken
from rookery.actors.hooks.points import HookPoints
from rookery.actors.kernel import Effect
from rookery.actors.kernel.executors import AskActor, EffectHandler, NotExecutableHere
from rookery.actors.messages import (
    ActiveRunQuery,
    ActiveRunView,
    CallProgress,
    CallsQuery,
    CallsView,
    RecordHooks,
    RecordRunEnd,
    ReportBrokenHistory,
    RunEndRecorded,
    UnparkRun,
)
from rookery.actors.turn_inputs import end_unexecuted
from rookery.actors.turns.effects import (
    ContinueRun,
    ExecuteRun,
    InvokeCancelHooks,
    ReportTurnOver,
    SendInterim,
    StopRun,
)
from rookery.bus.ports import Blobs, ReplyMessage
from rookery.schemas.agents import RUN_CODE
from rookery.schemas.calls import WAITING_FOR_APPROVAL, RunEnvironment
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CODES, CodedError, Refused
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

if TYPE_CHECKING:
    from rookery.actors.execution.models.code_programs import CodePrograms, CodeServices

__all__ = ["AgentExecution", "RunExecutor"]

log = logging.getLogger(__name__)

NOT_OURS: Final = "PARTITION_UNOWNED"


class AgentExecution(NamedTuple):
    """What the runs of models have beside the sandbox."""

    driver: Callable[[], Driver]
    conversations: SessionCachePort
    programs: Callable[[CodeServices, ProgramCachePort, str, ActiveRunView], CodePrograms]
    """Those in which the model of a session's run acts."""


@dataclass(kw_only=True)
class RunExecutor:
    """One per node; lives on the bus's loop."""

    ask: AskActor
    call_notifier: CallNotifierPort
    blobs: Blobs
    reader: RunHistoryReader
    session_cache: ProgramCachePort
    driver: Callable[[], Driver]
    hook_points: Callable[[str, ActiveRunView], HookPoints]
    """The points of a session's run that its hooks are invoked at."""
    require_tools: Callable[[RunEnvironment], None]
    """Raises ``Refused`` if a tool of the run no longer exists, ``NotExecutableHere`` if this node
    lacks it."""
    wait_for_hooks: Callable[[RunEnvironment], Awaitable[str]]
    """Waits until the hooks of a run can be invoked here; the id of one that cannot."""
    send_replies: Callable[[Sequence[ReplyMessage]], None]
    send_output: SendOutput
    eviction_candidates: Callable[[Callable[[str], bool]], Sequence[str]]
    """Idle sessions to evict from memory."""
    agents: AgentExecution | None = None
    """What executes the runs that models drive, where there are any."""
    resumptions: Resumptions = field(init=False)
    _executions: dict[str, RunExecution] = field(default_factory=dict)
    _failed_runs: set[str] = field(default_factory=set)
    """Runs whose execution failed and is retried."""
    _session_locks: WeakValueDictionary[str, asyncio.Lock] = field(
        default_factory=WeakValueDictionary
    )
    _evicting: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        self.resumptions = Resumptions(self._executions.__contains__)

    @property
    def handlers(self) -> Mapping[type[Effect], EffectHandler]:
        return {
            ExecuteRun: self.execute,
            ContinueRun: self.continue_run,
            ReportTurnOver: self.report_turn_over,
            NotifyHistoryBroken: self.notify_history_broken,
            StopRun: self.stop,
            InvokeCancelHooks: self.invoke_cancel_hooks,
            SendInterim: self.send_interim,
        }

    @property
    def executing(self) -> int:
        """How many runs this node executes now."""
        return len(self._executions)

    @property
    def running_sessions(self) -> Iterable[str]:
        """The sessions of these runs."""
        return tuple(execution.session for execution in self._executions.values())

    async def execute(self, effect: ExecuteRun) -> None:
        """Execute the run until it ends or parks."""
        if effect.is_resumption:
            await self.resumptions.wait_for_turn(effect.view.run_id)
        lock, run_id = self._session_lock(effect.session), effect.view.run_id
        stale = lock.locked() or effect.is_resumption or run_id in self._failed_runs
        async with lock:
            view = effect.view
            if stale:  # The run may have progressed since.
                self._failed_runs.discard(run_id)
                query = ActiveRunQuery(run_id=run_id)
                view = await self.ask("turn", effect.session, query, ActiveRunView)
            if view.ended or view.parked or view.offer is UNSET:
                return
            if view.cancelling:
                await self._end_unexecuted(effect.session, view)
                return
            if missing := await self.wait_for_hooks(view.offer):
                await self._leave_without_hook(effect.session, view, missing)
                return
            try:
                await self._execute(effect.session, view, view.offer)
            except Exception:
                self._failed_runs.add(run_id)
                raise
        surplus = self.eviction_candidates(self._session_locks.__contains__)
        if surplus and (self._evicting is None or self._evicting.done()):
            self._evicting = asyncio.create_task(self._evict_surplus(surplus))

    async def _leave_without_hook(self, session: str, view: ActiveRunView, hook: str) -> None:
        """Park a run that no node can go on with, or refuse it if it has not begun."""
        view = await self.ask("turn", session, ActiveRunQuery(run_id=view.run_id), ActiveRunView)
        if view.ended or view.parked or view.offer is UNSET:
            return
        if view.cancelling:
            await self._end_unexecuted(session, view)
            return
        execution = self._new_execution(session, view, view.offer)
        if view.steps:
            await execution.park_for(hook)
            return
        text = f"no node that owns the session has hook {hook}, so the run was not begun"
        hint = "start a node with the registry that has it; rookery doctor"
        await execution.fail(Refused(HOOK_EXECUTOR_MISSING, text, hint=hint))

    async def continue_run(self, effect: ContinueRun) -> None:
        """Continue a run after a reload, unless this node executes it already."""
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
        """Let the session fail its run if the turn's history is broken, and the turn its run for
        any other family."""
        session, family = effect.session, effect.family
        report = ReportBrokenHistory(family=family, code=effect.code, message=effect.message)
        if family == "turn":
            await self.ask("session", session, report, RunEndRecorded)
            return
        view = await self.ask("turn", session, report, ActiveRunView)
        execution = self._executions.get(view.run_id)
        if view.ended and execution is not None:
            await execution.stop()

    async def stop(self, effect: StopRun) -> None:
        """End the run now."""
        execution = self._executions.get(effect.run_id)
        if execution is not None:
            await execution.stop()
            return
        query = ActiveRunQuery(run_id=effect.run_id)
        view = await self.ask("turn", effect.session, query, ActiveRunView)
        if view.cancelling:
            await self._end_unexecuted(effect.session, view)

    async def invoke_cancel_hooks(self, effect: InvokeCancelHooks) -> None:
        """Let hooks say what a cancelled run leaves behind. A node that lacks them says nothing."""
        session, view = effect.session, effect.view
        said = await self.hook_points(session, view).run_cancel_requested()
        if said:
            command = RecordHooks(run_id=view.run_id, hooks=said)
            await self.ask("turn", session, command, ActiveRunView)

    async def evict(self, session: str) -> None:
        """Evict a session from memory: it is idle, surplus, or belongs to another node."""
        async with self._session_lock(session):
            await self.session_cache.evict(session)
            if self.agents is not None:
                await self.agents.conversations.evict(session)

    async def can_continue(self, session: str, run_id: str) -> bool:
        """Whether the run can continue after an approved call. If it never can, the run fails and
        the call is not made."""
        if run_id in self._executions:
            return True
        view = await self.ask("turn", session, ActiveRunQuery(run_id=run_id), ActiveRunView)
        if not view.parked or view.ended or view.offer is UNSET:
            return not view.ended
        try:
            self.require_tools(view.offer)
            await self._memory(view.offer).require(view.offer)
        except CodedError as error:
            if CODES[error.code].retryable:
                raise
            log.warning("run cannot continue", extra={"run": run_id, "code": error.code})
            async with self._session_lock(session):
                await self._new_execution(session, view, view.offer).fail(error)
            return False
        return True

    async def send_interim(self, effect: SendInterim) -> None:
        """Send the interim result; the final result follows later. If a call ended while the run
        was being parked, resume the run instead."""
        query = CallsQuery(run_id=effect.run_id)
        known = (await self.ask("turn", effect.session, query, CallsView)).calls
        waited = {call.operation_id for call in effect.calls}
        if any(call.operation_id in waited and call.outcome is not UNSET for call in known):
            ready = UnparkRun(run_id=effect.run_id)
            await self.ask("turn", effect.session, ready, ActiveRunView)
            return
        if not effect.reply_to:
            return
        view = await self.ask(
            "turn", effect.session, ActiveRunQuery(run_id=effect.run_id), ActiveRunView
        )
        offered = () if view.offer is UNSET else await self.reader.tools(view.offer)
        side_effects = {tool.name: tool.side_effect for tool in offered}
        reply = encode_json(interim_reply(effect, side_effects, known))
        self.send_replies([ReplyMessage(reply_to, reply) for reply_to in effect.reply_to])

    async def _evict_surplus(self, surplus: Sequence[str]) -> None:
        """Evict sessions without blocking runs; an evicted session is restored when needed."""
        for session in surplus:
            if session not in self._session_locks:
                await self.evict(session)

    def _session_lock(self, session: str) -> asyncio.Lock:
        """The lock on the session's sandbox."""
        lock = self._session_locks.get(session)
        if lock is None:
            lock = self._session_locks[session] = asyncio.Lock()
        return lock

    async def _execute(
        self, session: str, view: ActiveRunView, environment: RunEnvironment
    ) -> None:
        """Execute with a fresh ``RunExecution``. Retryable failures are raised; any other one fails
        the run."""
        execution = self._new_execution(session, view, environment)
        self._executions[view.run_id] = execution
        try:
            try:
                self.require_tools(environment)
                while await execution.run():
                    execution = await self._execute_once_more(session, view, environment)
            except CodedError as error:
                if error.code == "SEALING_KEY_MISSING":
                    raise NotExecutableHere(error.message) from None
                if error.code == NOT_OURS or CODES[error.code].retryable:
                    raise
                log.warning("run not executable", extra={"run": view.run_id, "code": error.code})
                await execution.fail(error)
        except BaseException:
            await execution.abandon()
            raise
        finally:
            del self._executions[view.run_id]
            self.resumptions.end(view.run_id)

    async def _execute_once_more(
        self, session: str, view: ActiveRunView, environment: RunEnvironment
    ) -> RunExecution:
        """The second execution of a run's program, which a hook has requested."""
        query = ActiveRunQuery(run_id=view.run_id)
        view = await self.ask("turn", session, query, ActiveRunView)
        execution = self._new_execution(session, view, environment)
        self._executions[view.run_id] = execution
        return execution

    def _new_execution(
        self, session: str, view: ActiveRunView, environment: RunEnvironment
    ) -> RunExecution:
        agents = self.agents if environment.model is not UNSET else None
        driver = self.driver() if agents is None else agents.driver()
        programs = None
        if agents is not None and may_run_code(environment):
            programs = agents.programs(self, self.session_cache, session, view)
        return RunExecution(
            self, driver, self._memory(environment), session, view, programs=programs
        )

    def _memory(self, environment: RunEnvironment) -> SessionCachePort:
        """What has the session of a run in this environment between its steps."""
        if environment.model is UNSET:
            return self.session_cache
        if self.agents is None:
            raise NotExecutableHere("this node asks no models")
        return self.agents.conversations

    async def _end_unexecuted(self, session: str, view: ActiveRunView) -> None:
        """End a run that has no driver: it is parked or has not begun."""
        output = await parked_output(self.blobs, view)
        await self.ask("turn", session, end_unexecuted(view, output), ActiveRunView)


def may_run_code(environment: RunEnvironment) -> bool:
    """Whether the model of the run acts in programs; a tool of that name comes first."""
    if environment.model is UNSET or not environment.model.has_code:
        return False
    return all(tool.name != RUN_CODE for tool in environment.tools)


def interim_reply(
    effect: SendInterim, side_effects: Mapping[str, SideEffect], calls: Sequence[CallProgress]
) -> RunAnswer:
    """A parked run's state in the form of a result, with the calls it waits for. ``side_effects``:
    the side effect of each tool; ``calls``: those of the run so far."""
    for_approval = effect.code == WAITING_FOR_APPROVAL
    unapproved = {one.operation_id for one in calls if one.waits_for == WAITING_FOR_APPROVAL}
    status = RunStatus.WAITING_FOR_APPROVAL if for_approval else RunStatus.INTERRUPTED
    of_calls = ", ".join(call.name for call in effect.calls) or "its model"
    names = f"hook {effect.hook}" if effect.hook else of_calls
    error = ErrorObject(
        code=effect.code,
        message=f"the run is parked and waits for: {names}",
        hint=f"rookery runs show {effect.run_id}",
    )
    result = RunResult.failed(status, error, metrics=Metrics(external_calls_count=len(calls)))
    records = tuple(
        ExternalCallRecord(
            name=call.name,
            side_effect=side_effects.get(call.name, SideEffect.NONE),
            status=CallStatus.APPROVAL_PENDING
            if call.operation_id in unapproved
            else CallStatus.ERROR,
            request_digest=call.digest,
        )
        for call in effect.calls
    )
    shown = msgspec.structs.replace(
        result, external_calls=records, snapshot_id=effect.snapshot_id or None
    )
    return RunAnswer.of(shown, effect.run_id, effect.session)
