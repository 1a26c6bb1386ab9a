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

from rookery.actors.approvals.broker import Broker
from rookery.actors.approvals.dispatchers.fan_out import Panel
from rookery.actors.approvals.dispatchers.port import (
    Decision,
    Dispatched,
    Dispatcher,
    Pending,
    Terms,
)
from rookery.actors.approvals.effects import (
    Arm,
    CheckAnswer,
    ConsumeGrant,
    Deny,
    Dispatch,
    DispatchBegins,
    DispatchEnded,
    DispatchLost,
    Release,
    Stands,
    StopAsking,
    TellWaiting,
)
from rookery.actors.approvals.request_record import actor_ref, operation_of, request_of, terms_of
from rookery.actors.approvals.state import Asked
from rookery.actors.kernel.decider import Effect
from rookery.actors.kernel.effect_runner import Performer
from rookery.actors.kernel.local_ask import Ask
from rookery.bus.ports import Timer, Timers
from rookery.schemas.approvals.decision import DecideApproval
from rookery.schemas.approvals.records import (
    ApprovalBrokerOutcome,
    ApprovalDecision,
    ApprovalRequest,
    decision_from_token,
    token_of,
)
from rookery.schemas.calls import ApprovalNoted, CallAllowed, CallDenied, KnownCall, ToolFault
from rookery.schemas.codec import encode_json
from rookery.schemas.commands import ApprovalDue
from rookery.schemas.errors import Refused
from rookery.schemas.seed.agent_error import AgentError
from rookery.schemas.seed.records import JournalRecord, JournalRecordKind

__all__ = ["ApprovalsActing"]

log = logging.getLogger(__name__)

FAMILY: Final = "approval"
DENIED: Final = "PERMISSION_DENIED"


@dataclass(kw_only=True)
class ApprovalsActing:
    """One a node."""

    ask: Ask
    timers: Timers
    dispatchers: Mapping[str, Dispatcher]
    tell: Callable[[KnownCall], None]
    """Whoever waits for a call hears how it stands."""
    now_ms: Callable[[], int]
    goes_on: Callable[[str, str], Awaitable[bool]]
    """Whether a session's run can go on here; one that cannot anywhere has ended by then."""
    _asking: dict[str, set[asyncio.Task[Any]]] = field(default_factory=dict)

    @property
    def performers(self) -> dict[type[Effect], Performer]:
        return {
            Arm: self.arm,
            Dispatch: self.dispatch,
            StopAsking: self.stop_asking,
            TellWaiting: self.tell_waiting,
            Release: self.release,
            Deny: self.deny,
        }

    async def arm(self, effect: Arm) -> None:
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
        approval_id = effect.asked.approval_id
        asking = asyncio.ensure_future(self._dispatch(effect))
        under_way = self._asking.setdefault(approval_id, set())
        under_way.add(asking)
        try:
            await asyncio.wait({asking})
            if not asking.cancelled():
                await asking
        finally:
            asking.cancel()
            under_way.discard(asking)
            if not under_way:
                self._asking.pop(approval_id, None)

    async def stop_asking(self, effect: StopAsking) -> None:
        """It is over: whoever waits for an answer need not, nor does a timer."""
        for asking in tuple(self._asking.get(effect.approval_id, ())):
            asking.cancel()
        for escalate in (False, True):
            await self.timers.cancel(_timer_id(effect.approval_id, escalate=escalate))

    async def tell_waiting(self, effect: TellWaiting) -> None:
        self.tell(effect.known)

    async def release(self, effect: Release) -> None:
        """Nothing is let through that has not used its grant; the call is told which it was. No
        call is made for a run that could not be told of it."""
        if not await self.goes_on(effect.session, effect.run_id):
            return
        grant = effect.grant
        use = ConsumeGrant(
            grant_id=grant.grant_id,
            operation_id=grant.operation_id,
            request_digest=grant.request_digest,
        )
        used = await self.ask(FAMILY, effect.session, use, Stands)
        if not used.stands:
            return
        allowed = CallAllowed(
            operation_id=grant.operation_id,
            request_digest=grant.request_digest,
            grant_id=grant.grant_id,
        )
        await self.ask("tool", effect.session, allowed, ApprovalNoted)

    async def deny(self, effect: Deny) -> None:
        fault = ToolFault(DENIED, effect.message)
        denied = CallDenied(operation_id=effect.operation_id, fault=fault)
        await self.ask("tool", effect.session, denied, ApprovalNoted)

    async def _dispatch(self, effect: Dispatch) -> None:
        asked, session = effect.asked, effect.session
        if self.now_ms() >= asked.due_ms:
            return  # No answer would count; one that came in time may still wait in the inbox.
        known = [self.dispatchers[name] for name in effect.dispatchers if name in self.dispatchers]
        request = request_of(session, asked)
        panel = _Heard([_Listening(self, session, asked, one) for one in known])
        broker = Broker(journal := _ActorsJournal(self.ask, session, asked, panel))
        journal.call_off = broker.cancel_before_dispatch
        try:
            await broker.request_approval(request, panel if known else None, terms_of(asked))
        except AgentError as error:
            log.error("an approval needs repair", extra={"key": session, "kind": error.kind})


class _Listening:
    """A dispatcher whose answers are looked at before the broker hears of them: one that does not
    count is on record as refused, and the request goes on waiting for one that does."""

    def __init__(
        self, acting: ApprovalsActing, session: str, asked: Asked, dispatcher: Dispatcher
    ) -> None:
        self._acting, self._session, self._asked = acting, session, asked
        self._dispatcher = dispatcher

    @property
    def name(self) -> str:
        return self._dispatcher.name

    async def dispatch(self, request: ApprovalRequest, terms: Terms) -> Dispatched:
        said = await self._dispatcher.dispatch(request, terms)
        if not isinstance(said, Decision):
            return said
        arrived_ms = self._acting.now_ms()
        answer = said.answer or _unsigned(self._asked, said.decision)
        check = CheckAnswer(answer=answer, arrived_ms=arrived_ms)
        try:
            looked_at = await self._acting.ask(FAMILY, self._session, check, Stands)
        except Refused:  # Too many of them were refused to record this one.
            return Pending()
        decision = decision_from_token(answer.decision, actor_ref(request, answer.actor))
        if not looked_at.stands or decision is None:
            return Pending()
        return Decision(decision, answer, arrived_ms)


class _Heard(Panel):
    """Remembers the decision that ended it."""

    decision: Decision | None = None

    async def dispatch(self, request: ApprovalRequest, terms: Terms) -> Dispatched:
        said = await super().dispatch(request, terms)
        if isinstance(said, Decision):
            self.decision = said
        return said


@dataclass
class _ActorsJournal:
    """The broker's journal in the actor: port ``RunJournal``.

    The intent stands since the request does, in one message with it; here is only seen whether
    anybody still wants to know. The actor numbers records by itself.
    """

    ask: Ask
    session: str
    asked: Asked
    heard: _Heard
    call_off: Callable[[str], None] = lambda _: None

    async def append(
        self, record: JournalRecord, outcome: ApprovalBrokerOutcome | None = None
    ) -> str:
        approval_id = self.asked.approval_id
        said: msgspec.Struct
        if outcome is not None:
            heard = self.heard.decision
            said = DispatchEnded(
                approval_id=approval_id,
                record=record,
                outcome=outcome,
                answer=None if heard is None else heard.answer,
                arrived_ms=0 if heard is None else heard.arrived_ms,
            )
        elif record.record_kind is JournalRecordKind.RECOVERY:
            said = DispatchLost(approval_id=approval_id, record=record)
        else:
            said = DispatchBegins(approval_id=approval_id)
        stands = await self.ask(FAMILY, self.session, said, Stands)
        if isinstance(said, DispatchBegins) and not stands.stands:
            self.call_off(approval_id)
        return record.record_id


def _unsigned(asked: Asked, decision: ApprovalDecision) -> DecideApproval:
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
