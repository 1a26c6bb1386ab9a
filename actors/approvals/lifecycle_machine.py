"""approval_lifecycle: the machine of pending approvals and their decisions.

The machine accepts every input. An input without effect leaves a rejection with its reason, so that
a service can persist each of its answers. The machine has no clock: the caller observes whether an
expiry is due before every query and every decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from immutables import Map
from msgspec.structs import replace

from rookery.actors.kernel.machines import Machine, MachineInput, Transition, TransitionEffect
from rookery.schemas.approvals.records import ApprovalAnswer, ApprovalRejection, ApprovalStatus
from rookery.schemas.facts import approval as facts

__all__ = [
    "ABSENT",
    "APPROVALS",
    "ApprovalLifecycleRejected",
    "ApprovalStatusResolved",
    "ApprovalStatuses",
]

ABSENT = "absent"
PENDING, APPROVED, DENIED, EXPIRED, CANCELLED = ApprovalStatus
APPROVE, DENY = ApprovalAnswer
Rejection = ApprovalRejection


class ApprovalStatuses(msgspec.Struct, frozen=True, kw_only=True):
    """The approvals of a session by id; the map never shrinks."""

    statuses: Map[str, ApprovalStatus] = Map()
    approve_allowed: Map[str, bool] = Map()
    deny_allowed: Map[str, bool] = Map()
    has_expiry: Map[str, bool] = Map()


# --- effects ------------------------------------------------------------------------------------


class ApprovalStatusResolved(TransitionEffect, frozen=True, kw_only=True):
    """The approval has this status."""

    approval_id: str
    status: ApprovalStatus


class ApprovalLifecycleRejected(TransitionEffect, frozen=True, kw_only=True):
    """The input had no effect, for this reason."""

    approval_id: str
    reason: ApprovalRejection


EffectFactory = Callable[[ApprovalStatuses, Any], TransitionEffect]


def resolve(status: ApprovalStatus) -> EffectFactory:
    return lambda _, a: ApprovalStatusResolved(approval_id=a.approval_id, status=status)


def reject(reason: ApprovalRejection) -> EffectFactory:
    return lambda _, a: ApprovalLifecycleRejected(approval_id=a.approval_id, reason=reason)


# --- guards -------------------------------------------------------------------------------------


def status(s: ApprovalStatuses, a: Any) -> ApprovalStatus | None:
    return s.statuses.get(a.approval_id)


def is_known(s: ApprovalStatuses, a: Any) -> bool:
    return a.approval_id in s.statuses


def is_answerable(a: facts.Created | facts.Restored) -> bool:
    return a.approve_ok or a.deny_ok


def restores(wanted: ApprovalStatus) -> Callable[[ApprovalStatuses, facts.Restored], bool]:
    """Whether the record is new, consistent, and has the status ``wanted``."""

    def when(s: ApprovalStatuses, a: facts.Restored) -> bool:
        return not is_known(s, a) and a.status is wanted and is_consistent(a)

    return when


def is_consistent(a: facts.Restored) -> bool:
    """Whether the record is possible: it has a permitted decision if and only if it is decided."""
    if a.status is APPROVED:
        return a.approve_ok and a.decision is APPROVE
    if a.status is DENIED:
        return a.deny_ok and a.decision is DENY
    return is_answerable(a) and a.decision is None


def is_due(s: ApprovalStatuses, a: facts.ExpiryObserved) -> bool:
    return a.expired and s.has_expiry.get(a.approval_id, False)


def is_allowed(s: ApprovalStatuses, a: facts.Decided) -> bool:
    answers = s.approve_allowed if a.decision is APPROVE else s.deny_allowed
    return answers.get(a.approval_id, False)


# --- changes ------------------------------------------------------------------------------------


def enter(entered: ApprovalStatus) -> Callable[[ApprovalStatuses, Any], ApprovalStatuses]:
    return lambda s, a: ApprovalStatuses(
        statuses=s.statuses.set(a.approval_id, entered),
        approve_allowed=s.approve_allowed.set(a.approval_id, a.approve_ok),
        deny_allowed=s.deny_allowed.set(a.approval_id, a.deny_ok),
        has_expiry=s.has_expiry.set(a.approval_id, a.expiry),
    )


def set_status(reached: ApprovalStatus) -> Callable[[ApprovalStatuses, Any], ApprovalStatuses]:
    return lambda s, a: replace(s, statuses=s.statuses.set(a.approval_id, reached))


# --- the machine --------------------------------------------------------------------------------

_TERMS = ("approve_ok", "deny_ok", "expiry")
_INPUTS = {
    "create_approval": MachineInput(facts.Created, ("approval_id", *_TERMS)),
    "restore_approval": MachineInput(
        facts.Restored, ("approval_id", "status", *_TERMS, "decision")
    ),
    "observe_approval_expiry": MachineInput(facts.ExpiryObserved, ("approval_id", "expired")),
    "decide_approval": MachineInput(facts.Decided, ("approval_id", "decision")),
}


def _restores(wanted: ApprovalStatus) -> Transition:
    return Transition(
        f"Restore{wanted}",
        "restore_approval",
        restores(wanted),
        enter(wanted),
        (resolve(wanted),),
    )


def _observe_closed(wanted: ApprovalStatus) -> Transition:
    """A closed approval ignores its expiry and reports its status."""
    return Transition(
        f"ObserveExpiry{wanted}Noop",
        "observe_approval_expiry",
        lambda s, a: status(s, a) is wanted,
        effects=(resolve(wanted),),
    )


# fmt: off
_ROWS = (
    Transition("CreateRejectedEmptyAllowedDecisions", "create_approval",
        lambda _, a: not is_answerable(a),
        effects=(reject(Rejection.EMPTY_ALLOWED_DECISIONS),)),
    Transition("CreateRejectedAlreadyExists", "create_approval",
        lambda s, a: is_answerable(a) and is_known(s, a),
        effects=(reject(Rejection.ALREADY_EXISTS),)),
    Transition("CreatePending", "create_approval",
        lambda s, a: is_answerable(a) and not is_known(s, a),
        enter(PENDING),
        (resolve(PENDING),)),
    Transition("RestoreRejectedDuplicate", "restore_approval",
        is_known,
        effects=(reject(Rejection.ALREADY_EXISTS),)),
    Transition("RestoreRejectedEmptyAllowedDecisions", "restore_approval",
        lambda s, a: not is_known(s, a) and not is_answerable(a),
        effects=(reject(Rejection.EMPTY_ALLOWED_DECISIONS),)),
    _restores(PENDING),
    _restores(EXPIRED),
    _restores(CANCELLED),
    _restores(APPROVED),
    _restores(DENIED),
    Transition("RestoreRejectedInvalidRecord", "restore_approval",
        lambda s, a: not is_known(s, a) and is_answerable(a) and not is_consistent(a),
        effects=(reject(Rejection.INVALID_RESTORED_RECORD),)),
    Transition("ObserveExpiryRejectedMissing", "observe_approval_expiry",
        lambda s, a: not is_known(s, a),
        effects=(reject(Rejection.NOT_FOUND),)),
    Transition("ObserveExpiryExpiresPending", "observe_approval_expiry",
        lambda s, a: status(s, a) is PENDING and is_due(s, a),
        set_status(EXPIRED),
        (resolve(EXPIRED),)),
    Transition("ObserveExpiryPendingNoop", "observe_approval_expiry",
        lambda s, a: status(s, a) is PENDING and not is_due(s, a),
        effects=(resolve(PENDING),)),
    _observe_closed(APPROVED),
    _observe_closed(DENIED),
    _observe_closed(EXPIRED),
    _observe_closed(CANCELLED),
    Transition("DecideRejectedMissing", "decide_approval",
        lambda s, a: not is_known(s, a),
        effects=(reject(Rejection.NOT_FOUND),)),
    Transition("DecideRejectedExpired", "decide_approval",
        lambda s, a: status(s, a) is EXPIRED,
        effects=(reject(Rejection.EXPIRED),)),
    Transition("DecideRejectedAlreadyDecided", "decide_approval",
        lambda s, a: status(s, a) in (APPROVED, DENIED, CANCELLED),
        effects=(reject(Rejection.ALREADY_DECIDED),)),
    Transition("DecideRejectedNotAllowed", "decide_approval",
        lambda s, a: status(s, a) is PENDING and not is_allowed(s, a),
        effects=(reject(Rejection.INVALID_DECISION),)),
    Transition("DecideApprove", "decide_approval",
        lambda s, a: status(s, a) is PENDING and a.decision is APPROVE and is_allowed(s, a),
        set_status(APPROVED),
        (resolve(APPROVED),)),
    Transition("DecideDeny", "decide_approval",
        lambda s, a: status(s, a) is PENDING and a.decision is DENY and is_allowed(s, a),
        set_status(DENIED),
        (resolve(DENIED),)),
)
# fmt: on

APPROVALS = Machine(
    "approval_lifecycle",
    handle="ApprovalLifecycle",
    phases=(ABSENT, *ApprovalStatus),
    initial=ApprovalStatuses(),
    inputs=_INPUTS,
    rows=_ROWS,
    phase=lambda s, a: s.statuses.get(a.approval_id, ABSENT),
)
