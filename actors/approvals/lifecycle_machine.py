"""approval_lifecycle: what waits for somebody's word, and what was said.

Every input is taken: what comes to nothing is told by an effect with the reason, never by a
refusal, so that a service can persist each answer it gave. There is no clock: whether an expiry is
due is observed by the caller, before every look and every decision. Who may answer, and what a
granted approval lets through, is the broker's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from immutables import Map
from msgspec.structs import replace

from rookery.actors.kernel.machines.machine import Input, Machine, Row, RowEffect
from rookery.schemas.approvals.lifecycle import ApprovalAnswer, ApprovalRejection, ApprovalStatus
from rookery.schemas.facts import approval as facts

__all__ = [
    "ABSENT",
    "APPROVALS",
    "ApprovalLifecycleRejected",
    "ApprovalStatusResolved",
    "Approvals",
]

ABSENT = "absent"
PENDING, APPROVED, DENIED, EXPIRED, CANCELLED = ApprovalStatus
APPROVE, DENY = ApprovalAnswer
Why = ApprovalRejection


class Approvals(msgspec.Struct, frozen=True, kw_only=True):
    """The approvals of a session, by their ids; none is ever forgotten."""

    statuses: Map[str, ApprovalStatus] = Map()
    approve_allowed: Map[str, bool] = Map()
    deny_allowed: Map[str, bool] = Map()
    has_expiry: Map[str, bool] = Map()


# --- effects ------------------------------------------------------------------------------------


class ApprovalStatusResolved(RowEffect, frozen=True, kw_only=True):
    """The approval stands here now, or still."""

    approval_id: str
    status: ApprovalStatus


class ApprovalLifecycleRejected(RowEffect, frozen=True, kw_only=True):
    """What was asked came to nothing."""

    approval_id: str
    reason: ApprovalRejection


Effect = Callable[[Approvals, Any], RowEffect]


def resolve(status: ApprovalStatus) -> Effect:
    return lambda _, a: ApprovalStatusResolved(approval_id=a.approval_id, status=status)


def reject(reason: ApprovalRejection) -> Effect:
    return lambda _, a: ApprovalLifecycleRejected(approval_id=a.approval_id, reason=reason)


# --- when rows hold -----------------------------------------------------------------------------


def status(s: Approvals, a: Any) -> ApprovalStatus | None:
    return s.statuses.get(a.approval_id)


def exists(s: Approvals, a: Any) -> bool:
    return a.approval_id in s.statuses


def answerable(a: facts.Created | facts.Restored) -> bool:
    return a.approve_ok or a.deny_ok


def restores(wanted: ApprovalStatus) -> Callable[[Approvals, facts.Restored], bool]:
    """Whether the record is a new one that says ``wanted``, and nothing against it."""

    def when(s: Approvals, a: facts.Restored) -> bool:
        return not exists(s, a) and a.status is wanted and consistent(a)

    return when


def consistent(a: facts.Restored) -> bool:
    """Whether the record says what can be: a decision, and only a decided one's, was allowed."""
    if a.status is APPROVED:
        return a.approve_ok and a.decision is APPROVE
    if a.status is DENIED:
        return a.deny_ok and a.decision is DENY
    return answerable(a) and a.decision is None


def due(s: Approvals, a: facts.ExpiryObserved) -> bool:
    return a.expired and s.has_expiry.get(a.approval_id, False)


def allowed(s: Approvals, a: facts.Decided) -> bool:
    answers = s.approve_allowed if a.decision is APPROVE else s.deny_allowed
    return answers.get(a.approval_id, False)


# --- what rows make of the approvals ------------------------------------------------------------


def enter(entered: ApprovalStatus) -> Callable[[Approvals, Any], Approvals]:
    return lambda s, a: Approvals(
        statuses=s.statuses.set(a.approval_id, entered),
        approve_allowed=s.approve_allowed.set(a.approval_id, a.approve_ok),
        deny_allowed=s.deny_allowed.set(a.approval_id, a.deny_ok),
        has_expiry=s.has_expiry.set(a.approval_id, a.expiry),
    )


def become(reached: ApprovalStatus) -> Callable[[Approvals, Any], Approvals]:
    return lambda s, a: replace(s, statuses=s.statuses.set(a.approval_id, reached))


# --- the machine --------------------------------------------------------------------------------

_TERMS = ("approve_ok", "deny_ok", "expiry")
_INPUTS = {
    "create_approval": Input(facts.Created, ("approval_id", *_TERMS)),
    "restore_approval": Input(facts.Restored, ("approval_id", "status", *_TERMS, "decision")),
    "observe_approval_expiry": Input(facts.ExpiryObserved, ("approval_id", "expired")),
    "decide_approval": Input(facts.Decided, ("approval_id", "decision")),
}


def _restores(wanted: ApprovalStatus) -> Row:
    return Row(
        f"Restore{wanted}",
        "restore_approval",
        restores(wanted),
        enter(wanted),
        (resolve(wanted),),
    )


def _observes(wanted: ApprovalStatus) -> Row:
    """Its time is no matter any more: it is told where it stands."""
    return Row(
        f"ObserveExpiry{wanted}Noop",
        "observe_approval_expiry",
        lambda s, a: status(s, a) is wanted,
        effects=(resolve(wanted),),
    )


# fmt: off
_ROWS = (
    Row("CreateRejectedEmptyAllowedDecisions", "create_approval",
        lambda _, a: not answerable(a),
        effects=(reject(Why.EMPTY_ALLOWED_DECISIONS),)),
    Row("CreateRejectedAlreadyExists", "create_approval",
        lambda s, a: answerable(a) and exists(s, a),
        effects=(reject(Why.ALREADY_EXISTS),)),
    Row("CreatePending", "create_approval",
        lambda s, a: answerable(a) and not exists(s, a),
        enter(PENDING),
        (resolve(PENDING),)),
    Row("RestoreRejectedDuplicate", "restore_approval",
        exists,
        effects=(reject(Why.ALREADY_EXISTS),)),
    Row("RestoreRejectedEmptyAllowedDecisions", "restore_approval",
        lambda s, a: not exists(s, a) and not answerable(a),
        effects=(reject(Why.EMPTY_ALLOWED_DECISIONS),)),
    _restores(PENDING),
    _restores(EXPIRED),
    _restores(CANCELLED),
    _restores(APPROVED),
    _restores(DENIED),
    Row("RestoreRejectedInvalidRecord", "restore_approval",
        lambda s, a: not exists(s, a) and answerable(a) and not consistent(a),
        effects=(reject(Why.INVALID_RESTORED_RECORD),)),
    Row("ObserveExpiryRejectedMissing", "observe_approval_expiry",
        lambda s, a: not exists(s, a),
        effects=(reject(Why.NOT_FOUND),)),
    Row("ObserveExpiryExpiresPending", "observe_approval_expiry",
        lambda s, a: status(s, a) is PENDING and due(s, a),
        become(EXPIRED),
        (resolve(EXPIRED),)),
    Row("ObserveExpiryPendingNoop", "observe_approval_expiry",
        lambda s, a: status(s, a) is PENDING and not due(s, a),
        effects=(resolve(PENDING),)),
    _observes(APPROVED),
    _observes(DENIED),
    _observes(EXPIRED),
    _observes(CANCELLED),
    Row("DecideRejectedMissing", "decide_approval",
        lambda s, a: not exists(s, a),
        effects=(reject(Why.NOT_FOUND),)),
    Row("DecideRejectedExpired", "decide_approval",
        lambda s, a: status(s, a) is EXPIRED,
        effects=(reject(Why.EXPIRED),)),
    Row("DecideRejectedAlreadyDecided", "decide_approval",
        lambda s, a: status(s, a) in (APPROVED, DENIED, CANCELLED),
        effects=(reject(Why.ALREADY_DECIDED),)),
    Row("DecideRejectedNotAllowed", "decide_approval",
        lambda s, a: status(s, a) is PENDING and not allowed(s, a),
        effects=(reject(Why.INVALID_DECISION),)),
    Row("DecideApprove", "decide_approval",
        lambda s, a: status(s, a) is PENDING and a.decision is APPROVE and allowed(s, a),
        become(APPROVED),
        (resolve(APPROVED),)),
    Row("DecideDeny", "decide_approval",
        lambda s, a: status(s, a) is PENDING and a.decision is DENY and allowed(s, a),
        become(DENIED),
        (resolve(DENIED),)),
)
# fmt: on

APPROVALS = Machine(
    "approval_lifecycle",
    handle="ApprovalLifecycle",
    phases=(ABSENT, *ApprovalStatus),
    initial=Approvals(),
    inputs=_INPUTS,
    rows=_ROWS,
    phase=lambda s, a: s.statuses.get(a.approval_id, ABSENT),
)
