"""The executor of approvals: arms timers, dispatches requests, and consumes grants.

The broker dispatches a request and journals through the actor, so that a result and its
consequences are one commit. Every effect may be performed again after a crash; the actors refuse
repeated steps. Runs on the bus loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from rookery.actors.approvals.broker import ApprovalBroker
from rookery.actors.approvals.dispatchers.dispatchers import FanOutDispatcher, InboxDispatcher
from rookery.actors.approvals.dispatchers.protocol import (
    Decision,
    Dispatcher,
    DispatchResult,
    Pending,
    Terms,
    actor_ref,
)
from rookery.actors.approvals.effects import (
    ArmTimer,
    BeginDispatch,
    CheckAnswer,
    Confirmed,
    ConsumeGrant,
    Dispatch,
    DispatchAcknowledged,
    DispatchEnded,
    DispatchUnrecorded,
    NotifyWaiting,
    ReleaseCall,
    StopDispatch,
)
from rookery.actors.approvals.facts import operation_of, to_request, to_terms
from rookery.actors.approvals.state import ApprovalRequestState
from rookery.actors.kernel import Effect
from rookery.actors.kernel.executors import AskActor, EffectHandler
from rookery.actors.messages import CallProgress
from rookery.bus.ports import Timer, Timers
from rookery.schemas.approvals.records import (
    ApprovalBrokerOutcome,
    ApprovalDecision,
    ApprovalRequest,
    DecideApproval,
    decision_from_token,
    token_of,
)
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import ApprovalDue
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.seed.agent_error import AgentError
from rookery.schemas.seed.records import JournalRecord, JournalRecordKind

__all__ = ["ApprovalExecutor"]

log = logging.getLogger(__name__)

FAMILY: Final = "approval"


@dataclass(kw_only=True)
class ApprovalExecutor:
    """One per node."""

    ask: AskActor
    timers: Timers
    dispatchers: Mapping[str, Dispatcher]
    notify_call: Callable[[CallProgress], None]
    """Notifies the driver of a call about its progress."""
    now_ms: Callable[[], int]
    can_continue: Callable[[str, str], Awaitable[bool]]
    """Whether a session's run can continue on this node; a run that can continue on no node has
    ended."""
    resume_in_turn: Callable[[str], AbstractAsyncContextManager[None]]
    """Waits for the turn of a run that is to resume, and on leaving until it has executed."""
    _dispatches: dict[str, set[asyncio.Task[Any]]] = field(default_factory=dict)

    @property
    def handlers(self) -> dict[type[Effect], EffectHandler]:
        return {
            ArmTimer: self.arm_timer,
            Dispatch: self.dispatch,
            StopDispatch: self.stop_dispatch,
            NotifyWaiting: self.notify_waiting,
            ReleaseCall: self.release_call,
        }

    async def arm_timer(self, effect: ArmTimer) -> None:
        due = ApprovalDue(approval_id=effect.approval_id, escalate=effect.escalate)
        timer = Timer(
            id=_timer_id(effect.approval_id, escalate=effect.escalate),
            due_ms=effect.due_ms,
            verb="approval_due",
            key=effect.session,
            body=encode_json(due),
        )
        await self.timers.arm(timer)

    async def dispatch(self, effect: Dispatch) -> None:
        """Dispatch the request until a decision arrives or stays pending. A request that only waits
        in the inbox is dispatched by its fact, which approvers read."""
        known = [self.dispatchers[name] for name in effect.dispatchers if name in self.dispatchers]
        if known and all(isinstance(dispatcher, InboxDispatcher) for dispatcher in known):
            return
        approval_id = effect.request_state.approval_id
        task = asyncio.ensure_future(self._dispatch_request(effect, known))
        tasks = self._dispatches.setdefault(approval_id, set())
        tasks.add(task)
        try:
            await asyncio.wait({task})
            if not task.cancelled():
                await task
        finally:
            task.cancel()
            tasks.discard(task)
            if not tasks:
                self._dispatches.pop(approval_id, None)

    async def stop_dispatch(self, effect: StopDispatch) -> None:
        """Cancel the dispatch and the timers of a closed approval."""
        for task in tuple(self._dispatches.get(effect.approval_id, ())):
            task.cancel()
        for escalate in (False, True) if effect.escalates else (False,):
            await self.timers.cancel(_timer_id(effect.approval_id, escalate=escalate))

    async def notify_waiting(self, effect: NotifyWaiting) -> None:
        self.notify_call(effect.progress)

    async def release_call(self, effect: ReleaseCall) -> None:
        """Consume the grant, so that the turn begins its call. A run that cannot continue here gets
        no call."""
        grant = effect.grant
        use = ConsumeGrant(
            grant_id=grant.grant_id,
            operation_id=grant.operation_id,
            request_digest=grant.request_digest,
        )
        async with self.resume_in_turn(effect.run_id):
            if await self.can_continue(effect.session, effect.run_id):
                await self.ask(FAMILY, effect.session, use, Confirmed)

    async def _dispatch_request(self, effect: Dispatch, known: Sequence[Dispatcher]) -> None:
        request_state, session = effect.request_state, effect.session
        if self.now_ms() >= request_state.due_ms:
            return  # A new answer would be late; the inbox may hold one that is in time.
        request = to_request(session, request_state)
        fan_out = _RecordingFanOut(
            [_CheckingDispatcher(self, session, request_state, one) for one in known]
        )
        broker = ApprovalBroker(journal := _ActorJournal(self.ask, session, request_state, fan_out))
        journal.cancel_dispatch = broker.cancel_before_dispatch
        try:
            await broker.request_approval(
                request, fan_out if known else None, to_terms(request_state)
            )
        except AgentError as error:
            log.error("approval needs repair", extra={"key": session, "kind": error.kind})


class _CheckingDispatcher:
    """A dispatcher whose answers are checked before the broker gets them. The actor records a
    refused answer, and the request stays pending."""

    def __init__(
        self,
        executor: ApprovalExecutor,
        session: str,
        request_state: ApprovalRequestState,
        dispatcher: Dispatcher,
    ) -> None:
        self._executor, self._session, self._request_state = executor, session, request_state
        self._dispatcher = dispatcher

    @property
    def name(self) -> str:
        return self._dispatcher.name

    async def dispatch(self, request: ApprovalRequest, terms: Terms) -> DispatchResult:
        result = await self._dispatcher.dispatch(request, terms)
        if isinstance(result, Pending):
            await self._acknowledge()
        if not isinstance(result, Decision):
            return result
        arrived_ms = self._executor.now_ms()
        answer = result.answer or _unsigned_answer(self._request_state, result.decision)
        check = CheckAnswer(answer=answer, arrived_ms=arrived_ms)
        try:
            reply = await self._executor.ask(FAMILY, self._session, check, Confirmed)
        except Refused:  # The limit of recorded refusals is reached.
            return Pending()
        decision = decision_from_token(answer.decision, actor_ref(request, answer.actor))
        if not reply.confirmed or decision is None:
            return Pending()
        return Decision(decision, answer, arrived_ms)

    async def _acknowledge(self) -> None:
        """Record that the dispatcher has the request. Without a record, a later node sends it
        again, under the same id."""
        acknowledged = DispatchAcknowledged(
            approval_id=self._request_state.approval_id, dispatcher=self.name
        )
        try:
            await self._executor.ask(FAMILY, self._session, acknowledged, Confirmed)
        except CodedError as error:
            about = {"key": self._session, "code": error.code}
            log.warning("acknowledgement of an approval not recorded", extra=about)


class _RecordingFanOut(FanOutDispatcher):
    """A fan-out that stores the decision that ended it."""

    decision: Decision | None = None

    async def dispatch(self, request: ApprovalRequest, terms: Terms) -> DispatchResult:
        result = await super().dispatch(request, terms)
        if isinstance(result, Decision):
            self.decision = result
        return result


@dataclass
class _ActorJournal:
    """The broker's port ``DispatchJournal``, implemented by the approval actor.

    The intent is committed together with the request, so the first append only asks whether the
    approval is still pending. The actor numbers the records.
    """

    ask: AskActor
    session: str
    request_state: ApprovalRequestState
    fan_out: _RecordingFanOut
    cancel_dispatch: Callable[[str], None] = lambda _: None

    async def append(
        self, record: JournalRecord, outcome: ApprovalBrokerOutcome | None = None
    ) -> str:
        approval_id = self.request_state.approval_id
        report: msgspec.Struct
        if outcome is not None:
            decision = self.fan_out.decision
            report = DispatchEnded(
                approval_id=approval_id,
                record=record,
                outcome=outcome,
                answer=None if decision is None else decision.answer,
                arrived_ms=0 if decision is None else decision.arrived_ms,
            )
        elif record.record_kind is JournalRecordKind.RECOVERY:
            report = DispatchUnrecorded(approval_id=approval_id, record=record)
        else:
            report = BeginDispatch(approval_id=approval_id)
        reply = await self.ask(FAMILY, self.session, report, Confirmed)
        if isinstance(report, BeginDispatch) and not reply.confirmed:
            self.cancel_dispatch(approval_id)
        return record.record_id


def _unsigned_answer(
    request_state: ApprovalRequestState, decision: ApprovalDecision
) -> DecideApproval:
    """An answer for a decision that came without one."""
    actor = "" if decision.actor_ref is None else decision.actor_ref.id.as_str()
    return DecideApproval(
        approval_id=request_state.approval_id,
        decision=token_of(decision),
        actor=actor or "dispatcher",
        request_digest=request_state.request_digest,
    )


def _timer_id(approval_id: str, *, escalate: bool) -> str:
    """A short id, because it is part of a command's id. An operation belongs to one session."""
    attempt = approval_id.rpartition(".")[2] if approval_id.count(".") > 1 else "1"
    kind = "escalation" if escalate else "approval"
    return f"{kind}.{operation_of(approval_id)}.{attempt}"
