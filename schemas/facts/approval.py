"""Facts of the family ``approval``: the concern ``approvals`` is their only writer.

A call that wants an approval is ``requested`` or ``auto_allowed``; a request is ``answered`` or
``closed``; what is allowed has a grant, which is consumed before the call is made. Beside them
stand the rows of approval_lifecycle, which takes every input: what came to nothing there is a fact
too. The records inside are the seed's. Approvers stand under the key ``_approvers``, all else under
the session's.
"""

from __future__ import annotations

from rookery.schemas.approvals.lifecycle import ApprovalAnswer, ApprovalStatus
from rookery.schemas.approvals.records import ApprovalTerminalStatus
from rookery.schemas.envelope import Fact, HistoryRestart, TransitionFact
from rookery.schemas.integers import Unsigned
from rookery.schemas.run import SideEffect
from rookery.schemas.seed.records import JournalRecord

__all__ = ["APPROVAL_FACTS", "ApprovalFact"]


# --- approval_lifecycle ---------------------------------------------------------------------------


class _ApprovalTransition(TransitionFact, frozen=True, kw_only=True):
    approval_id: str


class Created(_ApprovalTransition, frozen=True, kw_only=True, tag="approval.created.v1"):
    """Somebody's word was asked for."""

    approve_ok: bool
    """Whether it may be approved, and so ``deny_ok``."""
    deny_ok: bool
    expiry: bool
    """Whether it expires; when is for whoever observes it to know."""


class Restored(_ApprovalTransition, frozen=True, kw_only=True, tag="approval.restored.v1"):
    """A record from elsewhere was taken over as it stood."""

    status: ApprovalStatus
    approve_ok: bool
    deny_ok: bool
    expiry: bool
    decision: ApprovalAnswer | None = None


class ExpiryObserved(
    _ApprovalTransition, frozen=True, kw_only=True, tag="approval.expiry_observed.v1"
):
    """Somebody with a clock looked whether its time is over."""

    expired: bool


class Decided(_ApprovalTransition, frozen=True, kw_only=True, tag="approval.decided.v1"):
    """Somebody gave their word; the row says whether it counted."""

    decision: ApprovalAnswer


# --- calls that want an approval ------------------------------------------------------------------


class _OfApproval(Fact, frozen=True, kw_only=True):
    approval_id: str
    operation_id: str
    """The call."""


class _ApprovalCallFact(_OfApproval, frozen=True, kw_only=True):
    """All that is kept of a call that wants an approval."""

    run: str
    attempt: Unsigned
    """How often the call was asked for, this time included."""
    tool: str
    surface: str
    side_effect: SideEffect
    idempotent: bool
    schema_digest: str
    policy: str
    """Which policy of the tool's wants it: ``approval.manual``, or ``approval.auto.`` and a digest
    of its rule."""
    request_digest: str
    """SHA3-256 of the canonical arguments that are shown; an approval covers these alone."""
    arguments_ref: str
    """Where they stand, for whoever may see them: ``blob:`` and their digest."""
    summary: str
    """Of the arguments, without a value of theirs."""


class Requested(_ApprovalCallFact, frozen=True, kw_only=True, tag="approval.requested.v1"):
    """A call waits for somebody's word, or until ``due_ms``."""

    due_ms: Unsigned
    why: str = ""
    """Why somebody has to be asked although there is a rule, or a grant."""
    record: JournalRecord


class DispatchIntended(_OfApproval, frozen=True, kw_only=True, tag="approval.dispatch_intended.v1"):
    """The request is about to be put before somebody."""

    dispatchers: tuple[str, ...]
    record: JournalRecord


class Escalated(_OfApproval, frozen=True, kw_only=True, tag="approval.escalated.v1"):
    """Nobody has answered for a while: these are asked, too."""

    dispatchers: tuple[str, ...]


class DispatchResulted(_OfApproval, frozen=True, kw_only=True, tag="approval.dispatch_resulted.v1"):
    """Asking has ended, one way or another."""

    record: JournalRecord


class RecoveryRequired(_OfApproval, frozen=True, kw_only=True, tag="approval.recovery_required.v1"):
    """A dispatcher knows how asking ended, and that could not be put on record."""

    record: JournalRecord


class Answered(_OfApproval, frozen=True, kw_only=True, tag="approval.answered.v1"):
    """Somebody's answer counts."""

    decision: str
    actor: str
    verified: bool
    """Whether the key of a known approver has signed it."""
    key_id: str = ""
    reason: str = ""
    answered_at_ms: int = 0
    """By the clock of who answered."""
    arrived_ms: int = 0
    """When it came to us; it may have been worked off long after."""
    answer_digest: str
    record: JournalRecord


class AnswerRefused(_OfApproval, frozen=True, kw_only=True, tag="approval.answer_refused.v1"):
    """Somebody's answer does not count. Not more than some a minute are recorded."""

    code: str
    message: str
    decision: str
    actor: str
    key_id: str = ""


class Closed(_OfApproval, frozen=True, kw_only=True, tag="approval.closed.v1"):
    """It came to no approval."""

    status: ApprovalTerminalStatus
    reason_code: str
    reason: str = ""
    record: JournalRecord


class AutoAllowed(_ApprovalCallFact, frozen=True, kw_only=True, tag="approval.auto_allowed.v1"):
    """Nobody has to be asked about the call."""

    session_grant_id: str = ""
    """The session's grant it is allowed by; else by the rule."""
    rule: str = ""


# --- grants ---------------------------------------------------------------------------------------


class GrantIssued(_OfApproval, frozen=True, kw_only=True, tag="approval.grant_issued.v1"):
    """The call may be made, once, with exactly these arguments."""

    grant_id: str
    request_digest: str
    expires_at_ms: Unsigned
    session_grant_id: str = ""
    """It counts for nothing once that one is revoked."""


class GrantConsumed(_OfApproval, frozen=True, kw_only=True, tag="approval.grant_consumed.v1"):
    """The grant was in force, and the call has used it."""

    grant_id: str


class GrantExpired(Fact, frozen=True, kw_only=True, tag="approval.grant_expired.v1"):
    """Somebody wanted to use the grant, of a call or of the session, after its time."""

    grant_id: str


class GrantRevoked(Fact, frozen=True, kw_only=True, tag="approval.grant_revoked.v1"):
    """The grant, of a call or of the session, allows nothing more."""

    grant_id: str
    revoked_by: str
    """Somebody, or their command; or the session's grant that was revoked before."""


class SessionGrantIssued(Fact, frozen=True, kw_only=True, tag="approval.session_grant_issued.v1"):
    """In this life of the session the tool needs nobody's word again."""

    grant_id: str
    approval_id: str
    tool: str
    policy: str
    actor: str
    expires_at_ms: Unsigned


# --- approvers ------------------------------------------------------------------------------------


class ApproverAdded(Fact, frozen=True, kw_only=True, tag="approval.approver_added.v1"):
    """Answers with this key count as this approver's."""

    name: str
    key_id: str
    public_key: str


class ApproverRevoked(Fact, frozen=True, kw_only=True, tag="approval.approver_revoked.v1"):
    """Answers with this key count no more."""

    name: str
    key_id: str


class ApproverRefused(Fact, frozen=True, kw_only=True, tag="approval.approver_refused.v1"):
    """Somebody who may not wanted to add an approver, or to revoke one. Not more than some a minute
    are recorded."""

    name: str
    code: str
    message: str
    key_id: str = ""
    """Of whoever signed it."""


class HistoryRestarted(
    HistoryRestart, frozen=True, kw_only=True, tag="approval.history_restarted.v1"
):
    """No approval and no grant from before counts."""


ApprovalFact = (
    Created
    | Restored
    | ExpiryObserved
    | Decided
    | Requested
    | DispatchIntended
    | Escalated
    | DispatchResulted
    | RecoveryRequired
    | Answered
    | AnswerRefused
    | Closed
    | AutoAllowed
    | GrantIssued
    | GrantConsumed
    | GrantExpired
    | GrantRevoked
    | SessionGrantIssued
    | ApproverAdded
    | ApproverRevoked
    | ApproverRefused
    | HistoryRestarted
)
APPROVAL_FACTS = ApprovalFact
