"""Performing the effects of approvals: timers armed, dispatchers asked, calls released or denied.

A request is put before its dispatchers by the broker, whose journal is the actor: what asking came
to stands together with what follows from it. Everything here may be done again after a crash; the
actors know what was done before. Lives on the bus's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from rookery.actors.approvals.broker import ApprovalBroker
from rookery.actors.approvals.dispatchers.fan_out import FanOutDispatcher
from rookery.actors.approvals.dispatchers.port import (
    Decision,
    Dispatcher,
    DispatchResult,
    Pending,
    Terms,
)
from rookery.actors.approvals.effects import (
    ArmTimer,
    BeginDispatch,
    CheckAnswer,
    Confirmed,
    ConsumeGrant,
    Dispatch,
    DispatchEnded,
    DispatchUnrecorded,
    NotifyWaiting,
    RefuseCall,
    ReleaseCall,
    StopDispatch,
)
from rookery.actors.approvals.request_record import actor_ref, operation_of, to_request, to_terms
from rookery.actors.approvals.state import ApprovalRequestState
from rookery.actors.kernel.decider import Effect
from rookery.actors.kernel.effect_runner import EffectHandler
from rookery.actors.kernel.local_ask import AskActor
from rookery.actors.messages import AllowCall, ApprovalAcknowledged, CallProgress, DenyCall
from rookery.bus.ports import Timer, Timers
from rookery.schemas.approvals.decision import DecideApproval
from rookery.schemas.approvals.records import (
    ApprovalBrokerOutcome,
    ApprovalDecision,
    ApprovalRequest,
    decision_from_token,
    token_of,
)
from rookery.schemas.calls import ToolFault
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import ApprovalDue
from rookery.schemas.errors import Refused
from rookery.schemas.seed.agent_error import AgentError
from rookery.schemas.seed.records import JournalRecord, JournalRecordKind

__all__ = ["ApprovalExecutor"]

log = logging.getLogger(__name__)

FAMILY: Final = "approval"
DENIED_CODE: Final = "PERMISSION_DENIED"


@dataclass(kw_only=True)
class ApprovalExecutor:
    """One a node."""

    ask: AskActor
    timers: Timers
    dispatchers: Mapping[str, Dispatcher]
    notify_call: Callable[[CallProgress], None]
    """Whoever waits for a call hears how it stands."""
    now_ms: Callable[[], int]
    can_continue: Callable[[str, str], Awaitable[bool]]
    """Whether a session's run can go on here; one that cannot anywhere has ended by then."""
    _dispatches: dict[str, set[asyncio.Task[Any]]] = field(default_factory=dict)

    @property
    def handlers(self) -> dict[type[Effect], EffectHandler]:
        return {
            ArmTimer: self.arm_timer,
            Dispatch: self.dispatch,
            StopDispatch: self.stop_dispatch,
            NotifyWaiting: self.notify_waiting,
            ReleaseCall: self.release_call,
            RefuseCall: self.refuse_call,
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
        """Until somebody has answered, or the answer will come another way."""
        approval_id = effect.request_state.approval_id
        asking = asyncio.ensure_future(self._dispatch_request(effect))
        under_way = self._dispatches.setdefault(approval_id, set())
        under_way.add(asking)
        try:
            await asyncio.wait({asking})
            if not asking.cancelled():
                await asking
        finally:
            asking.cancel()
            under_way.discard(asking)
            if not under_way:
                self._dispatches.pop(approval_id, None)

    async def stop_dispatch(self, effect: StopDispatch) -> None:
        """It is over: whoever waits for an answer need not, nor does a timer."""
        for asking in tuple(self._dispatches.get(effect.approval_id, ())):
            asking.cancel()
        for escalate in (False, True):
            await self.timers.cancel(_timer_id(effect.approval_id, escalate=escalate))

    async def notify_waiting(self, effect: NotifyWaiting) -> None:
        self.notify_call(effect.progress)

    async def release_call(self, effect: ReleaseCall) -> None:
        """Nothing is let through that has not used its grant; the call is told which it was. No
        call is made for a run that could not be told of it."""
        if not await self.can_continue(effect.session, effect.run_id):
            return
        grant = effect.grant
        use = ConsumeGrant(
            grant_id=grant.grant_id,
            operation_id=grant.operation_id,
            request_digest=grant.request_digest,
        )
        used = await self.ask(FAMILY, effect.session, use, Confirmed)
        if not used.confirmed:
            return
        allowed = AllowCall(
            operation_id=grant.operation_id,
            request_digest=grant.request_digest,
            grant_id=grant.grant_id,
        )
        await self.ask("tool", effect.session, allowed, ApprovalAcknowledged)

    async def refuse_call(self, effect: RefuseCall) -> None:
        fault = ToolFault(DENIED_CODE, effect.message)
        denied = DenyCall(operation_id=effect.operation_id, fault=fault)
        await self.ask("tool", effect.session, denied, ApprovalAcknowledged)

    async def _dispatch_request(self, effect: Dispatch) -> None:
        asked, session = effect.request_state, effect.session
        if self.now_ms() >= asked.due_ms:
            return  # No answer would count; one that came in time may still wait in the inbox.
        known = [self.dispatchers[name] for name in effect.dispatchers if name in self.dispatchers]
        request = to_request(session, asked)
        panel = _RecordingFanOut([_CheckingDispatcher(self, session, asked, one) for one in known])
        broker = ApprovalBroker(journal := _ActorJournal(self.ask, session, asked, panel))
        journal.cancel_dispatch = broker.cancel_before_dispatch
        try:
            await broker.request_approval(request, panel if known else None, to_terms(asked))
        except AgentError as error:
            log.error("an approval needs repair", extra={"key": session, "kind": error.kind})


class _CheckingDispatcher:
    """A dispatcher whose answers are looked at before the broker hears of them: one that does not
    count is on record as refused, and the request goes on waiting for one that does."""

    def __init__(
        self,
        acting: ApprovalExecutor,
        session: str,
        asked: ApprovalRequestState,
        dispatcher: Dispatcher,
    ) -> None:
        self._executor, self._session, self._request_state = acting, session, asked
        self._dispatcher = dispatcher

    @property
    def name(self) -> str:
        return self._dispatcher.name

    async def dispatch(self, request: ApprovalRequest, terms: Terms) -> DispatchResult:
        said = await self._dispatcher.dispatch(request, terms)
        if not isinstance(said, Decision):
            return said
        arrived_ms = self._executor.now_ms()
        answer = said.answer or _unsigned_answer(self._request_state, said.decision)
        check = CheckAnswer(answer=answer, arrived_ms=arrived_ms)
        try:
            looked_at = await self._executor.ask(FAMILY, self._session, check, Confirmed)
        except Refused:  # Too many of them were refused to record this one.
            return Pending()
        decision = decision_from_token(answer.decision, actor_ref(request, answer.actor))
        if not looked_at.confirmed or decision is None:
            return Pending()
        return Decision(decision, answer, arrived_ms)


class _RecordingFanOut(FanOutDispatcher):
    """Remembers the decision that ended it."""

    decision: Decision | None = None

    async def dispatch(self, request: ApprovalRequest, terms: Terms) -> DispatchResult:
        said = await super().dispatch(request, terms)
        if isinstance(said, Decision):
            self.decision = said
        return said


@dataclass
class _ActorJournal:
    """The broker's journal in the actor: port ``RunJournal``.

    The intent stands since the request does, in one message with it; here is only seen whether
    anybody still wants to know. The actor numbers records by itself.
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
        said: msgspec.Struct
        if outcome is not None:
            heard = self.fan_out.decision
            said = DispatchEnded(
                approval_id=approval_id,
                record=record,
                outcome=outcome,
                answer=None if heard is None else heard.answer,
                arrived_ms=0 if heard is None else heard.arrived_ms,
            )
        elif record.record_kind is JournalRecordKind.RECOVERY:
            said = DispatchUnrecorded(approval_id=approval_id, record=record)
        else:
            said = BeginDispatch(approval_id=approval_id)
        stands = await self.ask(FAMILY, self.session, said, Confirmed)
        if isinstance(said, BeginDispatch) and not stands.confirmed:
            self.cancel_dispatch(approval_id)
        return record.record_id


def _unsigned_answer(asked: ApprovalRequestState, decision: ApprovalDecision) -> DecideApproval:
    """A decision that came without an answer to look at."""
    actor = "" if decision.actor_ref is None else decision.actor_ref.id.as_str()
    return DecideApproval(
        approval_id=asked.approval_id,
        decision=token_of(decision),
        actor=actor or "dispatcher",
        request_digest=asked.request_digest,
    )


def _timer_id(approval_id: str, *, escalate: bool) -> str:
    """Short: it is part of a command's id. An operation is of one session only."""
    attempt = approval_id.rpartition(".")[2] if approval_id.count(".") > 1 else "1"
    kind = "escalation" if escalate else "approval"
    return f"{kind}.{operation_of(approval_id)}.{attempt}"
