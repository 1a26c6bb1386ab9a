"""Facts of the family ``approval``, written by the decider of approvals.

A call that needs an approval is ``requested`` or ``auto_allowed``; a request is ``answered`` or
``closed``; an allowed call has a grant, which is consumed before the call is made. The machine
approval_lifecycle writes a fact for every input, also for one without effect. The records inside
are contract types. Approvers have the key ``_approvers``, all other facts their session's key.
"""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from rookery.schemas.approvals.records import ApprovalAnswer, ApprovalStatus, ApprovalTerminalStatus
from rookery.schemas.calls import ApprovalTerms
from rookery.schemas.envelope import Fact, HistoryRestart, TransitionFact
from rookery.schemas.run import SideEffect
from rookery.schemas.scalars import Unsigned
from rookery.schemas.seed.policy_decisions import ApprovalDecisionKind, DispatcherScope, RiskClass
from rookery.schemas.seed.records import JournalRecord

__all__ = ["APPROVAL_FACTS", "ApprovalFact"]


# --- approval_lifecycle ---------------------------------------------------------------------------


class _ApprovalTransition(TransitionFact, frozen=True, kw_only=True):
    approval_id: str


class Created(_ApprovalTransition, frozen=True, kw_only=True, tag="approval.created.v1"):
    """An approval was requested."""

    approve_ok: bool
    """Whether the request may be approved, as ``deny_ok`` says whether it may be denied."""
    deny_ok: bool
    expiry: bool
    """Whether the request expires. An observer knows the time."""


class Restored(_ApprovalTransition, frozen=True, kw_only=True, tag="approval.restored.v1"):
    """The record of another store was taken over unchanged."""

    status: ApprovalStatus
    approve_ok: bool
    deny_ok: bool
    expiry: bool
    decision: ApprovalAnswer | None = None


class ExpiryObserved(
    _ApprovalTransition, frozen=True, kw_only=True, tag="approval.expiry_observed.v1"
):
    """An observer with a clock checked whether the request has expired."""

    expired: bool


class Decided(_ApprovalTransition, frozen=True, kw_only=True, tag="approval.decided.v1"):
    """An approver decided; the row says whether the decision is valid."""

    decision: ApprovalAnswer


# --- calls that want an approval ------------------------------------------------------------------


class _OfApproval(Fact, frozen=True, kw_only=True):
    approval_id: str
    operation_id: str
    """Id of the call."""


class _ApprovalCallFact(_OfApproval, frozen=True, kw_only=True):
    """The stored description of a call that needs an approval."""

    run: str
    attempt: Unsigned
    """Number of the request for this call, from 1."""
    tool: str
    surface: str
    side_effect: SideEffect
    idempotent: bool
    schema_digest: str
    policy: str
    """Policy of the tool that requires the approval: ``approval.manual``, or ``approval.auto.`` and
    a digest of its rule."""
    request_digest: str
    """SHA3-256 of the canonical arguments an approver sees; an approval is valid for these only."""
    arguments_ref: str
    """Address of the arguments for readers with access: ``blob:`` and their digest."""
    summary: str
    """Description of the arguments, without their values."""
    risk: RiskClass | UnsetType = UNSET
    """Unset: by the side effect."""
    allowed_decisions: tuple[ApprovalDecisionKind, ...] | UnsetType = UNSET
    """Unset: all."""
    dispatcher_scope: DispatcherScope = DispatcherScope.HOST
    package_fingerprint: str = ""
    """Of the run's package; empty in facts of older versions."""


class Requested(_ApprovalCallFact, frozen=True, kw_only=True, tag="approval.requested.v1"):
    """A call waits for an approver, until ``due_ms`` at most."""

    due_ms: Unsigned
    terms: ApprovalTerms | UnsetType = UNSET
    """What hooks made stricter."""
    why: str = ""
    """Why an approver is needed although the tool has a rule, or the session a grant."""
    record: JournalRecord


class DispatchIntended(_OfApproval, frozen=True, kw_only=True, tag="approval.dispatch_intended.v1"):
    """The request is about to be sent to its dispatchers."""

    dispatchers: tuple[str, ...]
    record: JournalRecord


class Dispatched(_OfApproval, frozen=True, kw_only=True, tag="approval.dispatched.v1"):
    """A dispatcher has acknowledged the request, or the inbox lists it. An answer may still come
    by any way."""

    dispatcher: str


class Escalated(_OfApproval, frozen=True, kw_only=True, tag="approval.escalated.v1"):
    """The request was not answered in time and goes to these approvers, too."""

    dispatchers: tuple[str, ...]


class DispatchResulted(_OfApproval, frozen=True, kw_only=True, tag="approval.dispatch_resulted.v1"):
    """A dispatcher ended, with or without success."""

    record: JournalRecord


class RecoveryRequired(_OfApproval, frozen=True, kw_only=True, tag="approval.recovery_required.v1"):
    """The result of a dispatcher could not be journaled, so its outcome is unknown."""

    record: JournalRecord


class Answered(_OfApproval, frozen=True, kw_only=True, tag="approval.answered.v1"):
    """An approver's answer is valid."""

    decision: str
    actor: str
    verified: bool
    """Whether a known approver's key signed the answer."""
    key_id: str = ""
    reason: str = ""
    answered_at_ms: int = 0
    """Time of the answer by the approver's clock."""
    arrived_ms: int = 0
    """Time of arrival; the decision may be much later."""
    answer_digest: str
    request_digest: str = ""
    """Of the arguments that the answer is for; empty in facts of older versions."""
    tool_digest: str = ""
    """Of the tool that the answer is for, if the approver signed it."""
    signature: str = ""
    """The approver's, if the answer is verified; empty in facts of older versions."""
    record: JournalRecord


class AnswerRefused(_OfApproval, frozen=True, kw_only=True, tag="approval.answer_refused.v1"):
    """An approver's answer is not valid. Only some refusals a minute are recorded."""

    code: str
    message: str
    decision: str
    actor: str
    key_id: str = ""


class Closed(_OfApproval, frozen=True, kw_only=True, tag="approval.closed.v1"):
    """The request ended without an approval."""

    status: ApprovalTerminalStatus
    reason_code: str
    reason: str = ""
    record: JournalRecord


class AutoAllowed(_ApprovalCallFact, frozen=True, kw_only=True, tag="approval.auto_allowed.v1"):
    """The call needs no approver."""

    session_grant_id: str = ""
    """The session's grant that allows the call; empty if the rule allows it."""
    rule: str = ""


# --- grants ---------------------------------------------------------------------------------------


class GrantIssued(_OfApproval, frozen=True, kw_only=True, tag="approval.grant_issued.v1"):
    """The call may be made, once, with exactly these arguments."""

    grant_id: str
    request_digest: str
    expires_at_ms: Unsigned
    session_grant_id: str = ""
    """The session's grant this grant depends on: revoking that one voids this one."""


class GrantConsumed(_OfApproval, frozen=True, kw_only=True, tag="approval.grant_consumed.v1"):
    """The grant was valid and is used up by its call, which may begin because of this fact."""

    grant_id: str
    request_digest: str | UnsetType = UNSET
    """Digest of the arguments that the grant is bound to; unset in facts of older versions."""


class GrantExpired(Fact, frozen=True, kw_only=True, tag="approval.grant_expired.v1"):
    """A grant, of a call or of the session, was to be used after its time."""

    grant_id: str


class GrantRevoked(Fact, frozen=True, kw_only=True, tag="approval.grant_revoked.v1"):
    """The grant, of a call or of the session, is revoked."""

    grant_id: str
    revoked_by: str
    """The operator, the id of their command, the revoked grant of the session, or why the node
    itself revoked it."""
    key_id: str | UnsetType = UNSET
    """Of the approver's key, if ``revoked_by`` has signed it."""
    signature: str | UnsetType = UNSET


class SessionGrantIssued(Fact, frozen=True, kw_only=True, tag="approval.session_grant_issued.v1"):
    """The tool needs no further approval in this generation of the session, for the same arguments
    or, if its policy says so, for any."""

    grant_id: str
    approval_id: str
    tool: str
    policy: str
    actor: str
    expires_at_ms: Unsigned
    surface: str = ""
    """Empty, as the two digests, in facts of older versions: the grant is for any."""
    schema_digest: str = ""
    request_digest: str = ""
    """Empty: any arguments."""


# --- approvers ------------------------------------------------------------------------------------


class _ApproverChange(Fact, frozen=True, kw_only=True):
    """A change of the approvers, with the signature it was made with: ``verb approvers``."""

    name: str
    key_id: str
    change: Unsigned = 0
    """Number of the change; 0 in facts of older versions, which have no signature."""
    signed_by: str = ""
    """Id of the key that signed the change; empty: the realm's first approver, or an older fact."""
    signed_key: str = ""
    """The added key as the client wrote it, if that is not ``public_key``: what the signature
    covers."""
    root_key: str = ""
    """The realm's public root key, if that signed the change."""
    signature: str = ""


class ApproverAdded(_ApproverChange, frozen=True, kw_only=True, tag="approval.approver_added.v1"):
    """Answers signed with this key are this approver's."""

    public_key: str


class ApproverRevoked(
    _ApproverChange, frozen=True, kw_only=True, tag="approval.approver_revoked.v1"
):
    """Answers signed with this key are no longer valid. All keys of a name are revoked by one
    change."""


class ApproverRefused(Fact, frozen=True, kw_only=True, tag="approval.approver_refused.v1"):
    """A change of the approvers was refused for lack of permission. Only some refusals a minute are
    recorded."""

    name: str
    code: str
    message: str
    key_id: str = ""
    """Key that signed the change."""


class HistoryRestarted(
    HistoryRestart, frozen=True, kw_only=True, tag="approval.history_restarted.v1"
):
    """All earlier approvals and grants are void."""


ApprovalFact = (
    Created
    | Restored
    | ExpiryObserved
    | Decided
    | Requested
    | DispatchIntended
    | Dispatched
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
