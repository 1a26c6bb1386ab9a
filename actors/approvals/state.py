"""The approvals of a session: pending requests, grants, approvers and settings. Data only.

A request stores what is needed to rebuild it, without the arguments. Closed requests stay until the
next run requests an approval.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from immutables import Map
from msgspec import UNSET, UnsetType

from rookery.actors.approvals.lifecycle_machine import ApprovalStatuses
from rookery.schemas.approvals.records import ApprovalLifecycleStatus, DecideApproval, tool_digest
from rookery.schemas.calls import ApprovalTerms
from rookery.schemas.envelope import DEFAULT_CLASSES, FactClasses
from rookery.schemas.facts import approval as facts
from rookery.schemas.protection.policy import risk_of
from rookery.schemas.run import SideEffect
from rookery.schemas.seed.policy_decisions import ApprovalDecisionKind, DispatcherScope, RiskClass

__all__ = [
    "APPROVERS_KEY",
    "MESSAGE_MAX",
    "REFUSALS_MAX",
    "REFUSALS_TOTAL_MAX",
    "REFUSALS_WINDOW_MS",
    "RUN_ENDED",
    "STATE_SCHEMA",
    "UNPROVEN",
    "ApprovalRequestState",
    "ApprovalSettings",
    "Approver",
    "ApproverChange",
    "Grant",
    "GrantPhase",
    "RefusalWindow",
    "SessionApprovals",
    "SessionGrant",
]

STATE_SCHEMA = 5
REFUSALS_WINDOW_MS = 60_000
REFUSALS_MAX = 10
"""Recorded per minute for one approval, for answers to no pending approval of a session, or for
changes of approvers; more are refused without a record."""
REFUSALS_TOTAL_MAX = 200
"""Of these, at any time."""
MESSAGE_MAX = 300
"""Characters of a recorded refusal's message, which may repeat input."""
UNPROVEN: Final = "no valid approver's signature proves the grant"
RUN_ENDED: Final = "the run has ended"
"""Why a node itself revokes a grant."""
RISKS: Final = tuple(RiskClass)
WEBHOOK: Final = "webhook"
INBOX: Final = "inbox"
APPROVERS_KEY = "_approvers"
"""The key of the realm's approvers, one entity."""


class RefusalWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The number of recorded refusals, in the current minute and in total."""

    since_ms: int = 0
    count: int = 0
    total: int = 0

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether a limit of recorded refusals is reached."""
        in_window = now_ms - self.since_ms < REFUSALS_WINDOW_MS
        return self.total >= REFUSALS_TOTAL_MAX or (in_window and self.count >= REFUSALS_MAX)

    def add(self, at_ms: int) -> RefusalWindow:
        """One more refusal is recorded."""
        in_window = at_ms - self.since_ms < REFUSALS_WINDOW_MS
        return RefusalWindow(
            since_ms=self.since_ms if in_window else at_ms,
            count=self.count + 1 if in_window else 1,
            total=self.total + 1,
        )


class ApprovalRequestState(msgspec.Struct, frozen=True, kw_only=True):
    """One call and the last approval requested for it."""

    approval_id: str
    operation_id: str
    run: str
    generation: int
    attempt: int
    tool: str
    surface: str
    side_effect: SideEffect
    idempotent: bool
    schema_digest: str
    policy: str
    request_digest: str
    arguments_ref: str
    summary: str
    asked_at_ms: int
    risk: RiskClass | UnsetType = UNSET
    """Unset: by the side effect."""
    allowed_decisions: tuple[ApprovalDecisionKind, ...] | UnsetType = UNSET
    """Unset: all."""
    dispatcher_scope: DispatcherScope = DispatcherScope.HOST
    package_fingerprint: str = ""
    """Of the run's package; empty for a run of an older version."""
    dispatched: tuple[str, ...] = ()
    """The dispatchers that have acknowledged the request."""
    due_ms: int = 0
    """0 for a call allowed without a request."""
    terms: ApprovalTerms | UnsetType = UNSET
    """What hooks made stricter."""
    status: ApprovalLifecycleStatus = ApprovalLifecycleStatus.REQUESTED
    reason_code: str = ""
    grant_id: str = ""
    answer_digest: str = ""
    """The digest of the valid answer."""
    verified: bool = False
    answer: DecideApproval | None = None
    """The valid answer, if it is signed."""
    escalated: bool = False
    refusals: RefusalWindow = RefusalWindow()
    """Of answers to this approval."""

    @property
    def tool_digest(self) -> str:
        """Of the tool, as an approver sees it."""
        return tool_digest(self.tool, self.surface, self.schema_digest, self.policy)

    @property
    def risk_class(self) -> RiskClass:
        """Of the call, and at least what hooks say."""
        found = [risk_of(self.side_effect, idempotent=self.idempotent)]
        if self.risk is not UNSET:
            found = [self.risk]
        if self.terms is not UNSET and self.terms.risk_class is not UNSET:
            found.append(self.terms.risk_class)
        return max(found, key=RISKS.index)

    @property
    def is_pending(self) -> bool:
        """Whether an answer may still be valid."""
        return self.status in _PENDING


_PENDING = (
    ApprovalLifecycleStatus.REQUESTED,
    ApprovalLifecycleStatus.DISPATCH_INTENT_RECORDED,
    ApprovalLifecycleStatus.DISPATCHED,
)


class GrantPhase(StrEnum):
    ISSUED = "issued"
    CONSUMED = "consumed"
    EXPIRED = "expired"
    REVOKED = "revoked"


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Permission for one call with exactly these arguments."""

    grant_id: str
    approval_id: str
    operation_id: str
    request_digest: str
    expires_at_ms: int
    session_grant_id: str = ""
    state: GrantPhase = GrantPhase.ISSUED


class SessionGrant(msgspec.Struct, frozen=True, kw_only=True):
    """Permission for calls of a tool in one generation of the session, while ``issued``."""

    grant_id: str
    tool: str
    policy: str
    generation: int
    expires_at_ms: int
    surface: str = ""
    """Empty, as the digests: any."""
    schema_digest: str = ""
    request_digest: str = ""
    answer: DecideApproval | None = None
    """The approver's answer, if it is signed."""
    state: GrantPhase = GrantPhase.ISSUED


ApproverChange = facts.ApproverAdded | facts.ApproverRevoked


class Approver(msgspec.Struct, frozen=True, kw_only=True):
    """One key of an approver."""

    name: str
    key_id: str
    public_key: str
    signed_by: str = ""
    """Id of the key that signed its addition; empty if nothing proves it."""


class SessionApprovals(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one key of the family."""

    approvals: ApprovalStatuses = ApprovalStatuses()
    """The state of approval_lifecycle."""
    generation: int = 0
    run: str = ""
    """The last run that requested an approval."""
    asked: Map[str, ApprovalRequestState] = Map()
    """Requests by operation."""
    grants: Map[str, Grant] = Map()
    session_grants: Map[str, SessionGrant] = Map()
    in_run: Map[str, int] = Map()
    """The number of calls of each tool."""
    in_session: Map[str, int] = Map()
    records: int = 0
    """The number of records of the run."""
    classes: FactClasses = DEFAULT_CLASSES
    """What its last request of an approval claims."""
    refusals: RefusalWindow = RefusalWindow()
    """Of answers to no approval of the session, or of changes of approvers."""
    changes: tuple[ApproverChange, ...] = ()
    """All changes of the approvers, genuine and forged: ``ApproverLine`` tells them apart. Only
    under ``_approvers``."""

    def request_of_approval(self, approval_id: str) -> ApprovalRequestState | None:
        """The request with this approval id, if it is the operation's current one."""
        operation_id = approval_id.split(".")[1] if "." in approval_id else ""
        request = self.asked.get(operation_id)
        return request if request is not None and request.approval_id == approval_id else None


class ApprovalSettings(NamedTuple):
    """The settings of approvals; the same on every node of a realm."""

    realm: str = "default"
    dispatchers: tuple[str, ...] = ("inbox",)
    """Empty denies every request."""
    escalate_to: tuple[str, ...] = ()
    escalate_after_ms: int = 0
    """0 disables escalation."""
    timeout_ms: int = 24 * 3_600_000
    grant_ttl_ms: int = 24 * 3_600_000
    session_grant_ttl_ms: int = 24 * 3_600_000
    require_keys: bool = False
    """Only answers signed by an approver's key are valid."""
    root_key: str = ""
    """Public key, in hex, that may always change approvers. Without it the first approver needs no
    signature."""

    def timeout_under(self, terms: ApprovalTerms | UnsetType) -> int:
        """How long a request with these terms waits."""
        stricter = UNSET if terms is UNSET else terms.timeout_ms
        return self.timeout_ms if stricter is UNSET else min(self.timeout_ms, stricter)

    def allowed_under(
        self, terms: ApprovalTerms | UnsetType, dispatchers: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Those of the dispatchers that a request with these terms may use."""
        if terms is UNSET or terms.dispatchers is UNSET:
            return dispatchers
        return tuple(name for name in dispatchers if name in terms.dispatchers)

    @property
    def dispatcher_scope(self) -> DispatcherScope:
        """Whose dispatchers carry requests: those of the host, its one webhook, or none."""
        if not self.dispatchers:
            return DispatcherScope.HEADLESS
        by_source = {*self.dispatchers, *self.escalate_to} == {WEBHOOK}
        return DispatcherScope.SOURCE_SCOPED if by_source else DispatcherScope.HOST

    @property
    def escalates(self) -> bool:
        """Whether requests are escalated after some time."""
        return bool(self.escalate_to and self.escalate_after_ms)
