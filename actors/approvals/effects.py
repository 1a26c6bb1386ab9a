"""The effects of approvals, the commands of their executor, and which effects follow from a fact.

Effects depend on the state of the request, which after a crash is later than the fact: a finished
step is not repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from rookery.actors.approvals.state import (
    ApprovalRequestState,
    ApprovalSettings,
    Grant,
    GrantPhase,
    SessionApprovals,
)
from rookery.actors.kernel import Effect
from rookery.actors.messages import CallProgress
from rookery.schemas.approvals.records import ApprovalBrokerOutcome, DecideApproval
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import approval as facts
from rookery.schemas.seed.records import JournalRecord

__all__ = [
    "EFFECT_TYPES",
    "ArmTimer",
    "BeginDispatch",
    "CheckAnswer",
    "Confirmed",
    "ConsumeGrant",
    "Dispatch",
    "DispatchAcknowledged",
    "DispatchEnded",
    "DispatchUnrecorded",
    "NotifyWaiting",
    "ReleaseCall",
    "StopDispatch",
    "effects",
    "pending_effects",
]

WAITING: Final = "WAITING_FOR_APPROVAL"


class ArmTimer(Effect, frozen=True, kw_only=True):
    """Arm the timer that expires or escalates the approval."""

    session: str
    approval_id: str
    due_ms: int
    escalate: bool = False


class Dispatch(Effect, frozen=True, kw_only=True):
    """Dispatch the request."""

    session: str
    request_state: ApprovalRequestState
    dispatchers: tuple[str, ...]


class StopDispatch(Effect, frozen=True, kw_only=True):
    """Stop the dispatch and cancel its timers."""

    approval_id: str
    escalates: bool
    """Whether it may have a timer that escalates it."""


class NotifyWaiting(Effect, frozen=True, kw_only=True):
    """Notify the driver that the call waits for an approval."""

    progress: CallProgress


class ReleaseCall(Effect, frozen=True, kw_only=True):
    """Consume the grant; the turn then begins the call."""

    session: str
    run_id: str
    grant: Grant


# --- what is put to the actor ---------------------------------------------------------------------


class BeginDispatch(msgspec.Struct, frozen=True, kw_only=True):
    """Ask whether the approval is still pending, before its dispatch."""

    approval_id: str


class CheckAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Check a dispatcher's answer."""

    answer: DecideApproval
    arrived_ms: int


class DispatchAcknowledged(msgspec.Struct, frozen=True, kw_only=True):
    """Record that a dispatcher has the request and will bring an answer later."""

    approval_id: str
    dispatcher: str


class DispatchEnded(msgspec.Struct, frozen=True, kw_only=True):
    """Record the result of a dispatch."""

    approval_id: str
    record: JournalRecord
    outcome: ApprovalBrokerOutcome
    answer: DecideApproval | None = None
    arrived_ms: int = 0
    """When the answer arrived."""


class DispatchUnrecorded(msgspec.Struct, frozen=True, kw_only=True):
    """Record that the result of a dispatch could not be recorded."""

    approval_id: str
    record: JournalRecord


class ConsumeGrant(msgspec.Struct, frozen=True, kw_only=True):
    """Consume the grant, before its call begins."""

    grant_id: str
    operation_id: str
    request_digest: str


class Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to the executor's commands."""

    confirmed: bool


# --- what follows ---------------------------------------------------------------------------------


EFFECT_TYPES: Final[frozenset[type[Fact]]] = frozenset(
    {facts.Requested, facts.DispatchIntended, facts.Escalated, facts.Closed, facts.GrantIssued}
)
"""The facts that ``effects`` knows."""


def effects(state: SessionApprovals, fact: Fact, settings: ApprovalSettings) -> Sequence[Effect]:
    """The effects of ``fact``."""
    match fact:
        case facts.Requested() | facts.DispatchIntended() | facts.Escalated():
            request_state = state.request_of_approval(fact.approval_id)
            return (
                ()
                if request_state is None or not request_state.is_pending
                else _request_effects(fact, request_state, settings)
            )
        case facts.Closed():
            return (_stop_dispatch(fact, settings),)
        case facts.GrantIssued():
            grant = state.grants.get(fact.grant_id)
            return () if grant is None else _grant_effects(fact, grant, settings)
    return ()


def pending_effects(
    state: SessionApprovals, session: str, settings: ApprovalSettings
) -> Sequence[Effect]:
    """The effects of the last run's open approvals, from their state alone."""
    found: list[Effect] = []
    for request_state in state.asked.values():
        grant, key = state.grants.get(request_state.grant_id), f"{request_state.approval_id}/again"
        if request_state.run != state.run:
            continue
        if request_state.is_pending:
            found += _waiting_effects(key, session, request_state, settings)
            names = settings.allowed_under(request_state.terms, settings.dispatchers)
            found.append(
                Dispatch(key=key, session=session, request_state=request_state, dispatchers=names)
            )
        elif grant is not None and grant.state is GrantPhase.ISSUED:
            found.append(
                ReleaseCall(key=key, session=session, run_id=request_state.run, grant=grant)
            )
    return found


def _request_effects(
    fact: facts.Requested | facts.DispatchIntended | facts.Escalated,
    request_state: ApprovalRequestState,
    settings: ApprovalSettings,
) -> Sequence[Effect]:
    session, key = fact.session, fact.id
    if not isinstance(fact, facts.Requested):
        names = fact.dispatchers
        return (Dispatch(key=key, session=session, request_state=request_state, dispatchers=names),)
    return _waiting_effects(key, session, request_state, settings)


def _waiting_effects(
    key: str, session: str, request_state: ApprovalRequestState, settings: ApprovalSettings
) -> list[Effect]:
    approval_id = request_state.approval_id
    known = CallProgress(operation_id=request_state.operation_id, waits_for=WAITING)
    found: list[Effect] = [
        ArmTimer(key=key, session=session, approval_id=approval_id, due_ms=request_state.due_ms),
        NotifyWaiting(key=key, progress=known),
    ]
    if settings.escalates and not request_state.escalated:
        due_ms = request_state.asked_at_ms + settings.escalate_after_ms
        found.append(
            ArmTimer(
                key=key, session=session, approval_id=approval_id, due_ms=due_ms, escalate=True
            )
        )
    return found


def _stop_dispatch(fact: facts.Closed | facts.GrantIssued, settings: ApprovalSettings) -> Effect:
    return StopDispatch(key=fact.id, approval_id=fact.approval_id, escalates=settings.escalates)


def _grant_effects(
    fact: facts.GrantIssued, grant: Grant, settings: ApprovalSettings
) -> Sequence[Effect]:
    stop = _stop_dispatch(fact, settings)
    if grant.state is not GrantPhase.ISSUED:
        return (stop,)
    return (stop, ReleaseCall(key=fact.id, session=fact.session, run_id=str(fact.run), grant=grant))
