"""What follows from facts of approvals, and what whoever performs it puts back to the actor.

Effects look at the asking as it stands, which after a crash is later than the fact: what is over is
not done again. Performing is ``acting``'s.
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
from rookery.actors.kernel.decider import Effect
from rookery.actors.messages import CallProgress
from rookery.schemas.approvals.decision import DecideApproval
from rookery.schemas.approvals.records import ApprovalBrokerOutcome
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import approval as facts
from rookery.schemas.seed.records import JournalRecord

__all__ = [
    "ArmTimer",
    "BeginDispatch",
    "CheckAnswer",
    "Confirmed",
    "ConsumeGrant",
    "Dispatch",
    "DispatchEnded",
    "DispatchUnrecorded",
    "NotifyWaiting",
    "RefuseCall",
    "ReleaseCall",
    "StopDispatch",
    "effects",
    "pending_effects",
]

WAITING: Final = "WAITING_FOR_APPROVAL"


class ArmTimer(Effect, frozen=True, kw_only=True):
    """Have the approval looked at again when it is due."""

    session: str
    approval_id: str
    due_ms: int
    escalate: bool = False


class Dispatch(Effect, frozen=True, kw_only=True):
    """Put the request before these."""

    session: str
    request_state: ApprovalRequestState
    dispatchers: tuple[str, ...]


class StopDispatch(Effect, frozen=True, kw_only=True):
    """Nobody need answer any more."""

    approval_id: str


class NotifyWaiting(Effect, frozen=True, kw_only=True):
    """Tell whoever waits for the call that it may take long."""

    progress: CallProgress


class ReleaseCall(Effect, frozen=True, kw_only=True):
    """Have the call use its grant, and be made."""

    session: str
    run_id: str
    grant: Grant


class RefuseCall(Effect, frozen=True, kw_only=True):
    """Have the call fail."""

    session: str
    operation_id: str
    message: str


# --- what is put to the actor ---------------------------------------------------------------------


class BeginDispatch(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody is about to be asked, if that is still wanted."""

    approval_id: str


class CheckAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A dispatcher brings this answer: does it count?"""

    answer: DecideApproval
    arrived_ms: int


class DispatchEnded(msgspec.Struct, frozen=True, kw_only=True):
    """Asking has ended so."""

    approval_id: str
    record: JournalRecord
    outcome: ApprovalBrokerOutcome
    answer: DecideApproval | None = None
    arrived_ms: int = 0
    """When the answer came."""


class DispatchUnrecorded(msgspec.Struct, frozen=True, kw_only=True):
    """Asking has ended, and how could not be put on record."""

    approval_id: str
    record: JournalRecord


class ConsumeGrant(msgspec.Struct, frozen=True, kw_only=True):
    """A call is about to be made on the grant."""

    grant_id: str
    operation_id: str
    request_digest: str


class Confirmed(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to all of these: whether it is so."""

    confirmed: bool


# --- what follows ---------------------------------------------------------------------------------


def effects(state: SessionApprovals, fact: Fact, settings: ApprovalSettings) -> Sequence[Effect]:
    """What to do because of ``fact``."""
    match fact:
        case facts.Requested() | facts.DispatchIntended() | facts.Escalated():
            asked = state.request_of_approval(fact.approval_id)
            return (
                ()
                if asked is None or not asked.is_pending
                else _request_effects(fact, asked, settings)
            )
        case facts.Closed():
            asked = state.request_of_approval(fact.approval_id)
            return () if asked is None else _close_effects(fact)
        case facts.GrantIssued():
            grant = state.grants.get(fact.grant_id)
            return () if grant is None else _grant_effects(fact, grant)
    return ()


def pending_effects(
    state: SessionApprovals, session: str, settings: ApprovalSettings
) -> Sequence[Effect]:
    """What the askings of the last run call for, by what is on record of them alone."""
    found: list[Effect] = []
    for asked in state.asked.values():
        grant, key = state.grants.get(asked.grant_id), f"{asked.approval_id}/again"
        if asked.run != state.run:
            continue
        if asked.is_pending:
            found += _waiting_effects(key, session, asked, settings)
            names = settings.dispatchers
            found.append(Dispatch(key=key, session=session, request_state=asked, dispatchers=names))
        elif grant is None:
            message, operation = asked.reason_code, asked.operation_id
            found.append(
                RefuseCall(key=key, session=session, operation_id=operation, message=message)
            )
        elif grant.state in (GrantPhase.ISSUED, GrantPhase.CONSUMED):
            found.append(ReleaseCall(key=key, session=session, run_id=asked.run, grant=grant))
    return found


def _request_effects(
    fact: facts.Requested | facts.DispatchIntended | facts.Escalated,
    asked: ApprovalRequestState,
    settings: ApprovalSettings,
) -> Sequence[Effect]:
    session, key = fact.session, fact.id
    if not isinstance(fact, facts.Requested):
        names = fact.dispatchers
        return (Dispatch(key=key, session=session, request_state=asked, dispatchers=names),)
    return _waiting_effects(key, session, asked, settings)


def _waiting_effects(
    key: str, session: str, asked: ApprovalRequestState, settings: ApprovalSettings
) -> list[Effect]:
    approval_id = asked.approval_id
    known = CallProgress(operation_id=asked.operation_id, waits_for=WAITING)
    found: list[Effect] = [
        ArmTimer(key=key, session=session, approval_id=approval_id, due_ms=asked.due_ms),
        NotifyWaiting(key=key, progress=known),
    ]
    if settings.escalate_to and settings.escalate_after_ms and not asked.escalated:
        due_ms = asked.asked_at_ms + settings.escalate_after_ms
        found.append(
            ArmTimer(
                key=key, session=session, approval_id=approval_id, due_ms=due_ms, escalate=True
            )
        )
    return found


def _close_effects(fact: facts.Closed) -> Sequence[Effect]:
    because = f": {fact.reason}" if fact.reason else ""
    message = f"{fact.reason_code}{because}"
    return (
        StopDispatch(key=fact.id, approval_id=fact.approval_id),
        RefuseCall(
            key=fact.id, session=fact.session, operation_id=fact.operation_id, message=message
        ),
    )


def _grant_effects(fact: facts.GrantIssued, grant: Grant) -> Sequence[Effect]:
    stop = StopDispatch(key=fact.id, approval_id=fact.approval_id)
    if grant.state not in (GrantPhase.ISSUED, GrantPhase.CONSUMED):
        return (stop,)
    return (stop, ReleaseCall(key=fact.id, session=fact.session, run_id=str(fact.run), grant=grant))
