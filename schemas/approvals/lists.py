"""Lists of approvals and grants, and the queries for them.

Projections fill the lists; they never hold the value of an argument.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rookery.schemas.scalars import PageLimit

__all__ = [
    "ApprovalList",
    "ApprovalState",
    "GrantList",
    "GrantState",
    "GrantedQuery",
    "ListedApproval",
    "ListedGrant",
    "PendingQuery",
]


class ApprovalState(StrEnum):
    """State of an approval. All but the first are final."""

    PENDING = "pending"
    APPROVED = "approved"
    APPROVED_FOR_SESSION = "approved_for_session"
    DENIED = "denied"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    DISPATCHER_UNAVAILABLE = "dispatcher_unavailable"
    RECOVERY_REQUIRED = "recovery_required"


class GrantState(StrEnum):
    ISSUED = "issued"
    CONSUMED = "consumed"
    EXPIRED = "expired"
    REVOKED = "revoked"


class PendingQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List the realm's approvals (verb ``pending``, any key)."""

    approval_id: str | None = None
    """Only this approval, in any state."""
    session: str | None = None
    ended: bool = False
    """Also ended approvals, while the projection has them."""
    limit: PageLimit = 1_000


class GrantedQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """List the realm's grants (verb ``granted``, any key)."""

    session: str | None = None
    ended: bool = False
    """Also grants that are no longer valid, while the projection has them."""
    limit: PageLimit = 1_000


class ListedApproval(msgspec.Struct, frozen=True, kw_only=True):
    """One call that needs, or needed, an approval."""

    approval_id: str
    session_id: str
    run_id: str
    operation_id: str
    attempt: int
    tool: str
    surface: str
    side_effect: str
    policy: str
    policy_refs: tuple[str, ...]
    allowed_decisions: tuple[str, ...]
    summary: str
    """Description of the arguments, without their values."""
    request_digest: str
    """Digest of the exact arguments; an answer repeats it."""
    tool_digest: str = ""
    """Digest of the tool, its surface, schema and policy; a signed answer for the session repeats
    it."""
    arguments_ref: str
    """Address of the arguments for readers with access."""
    requested_at_ms: int
    due_ms: int
    why: str = ""
    dispatchers: tuple[str, ...] = ()
    """Names of the dispatchers that asked."""
    state: ApprovalState = ApprovalState.PENDING
    reason_code: str = ""
    reason: str = ""
    actor: str = ""
    """The approver that answered."""
    verified: bool = False
    ended_at_ms: int | None = None
    answers_refused: int = 0
    """Number of refused answers that are recorded."""


class ApprovalList(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``pending``: the earliest due first, then ended approvals, newest first."""

    approvals: tuple[ListedApproval, ...] = ()
    total: int = 0
    """Number of approvals that match the query."""


class ListedGrant(msgspec.Struct, frozen=True, kw_only=True):
    """One grant: for a call, or for a tool in the rest of a session."""

    grant_id: str
    session_id: str
    approval_id: str
    operation_id: str | None = None
    """Id of the call, in a grant for one call."""
    tool: str
    policy: str
    actor: str = ""
    state: GrantState = GrantState.ISSUED
    issued_at_ms: int
    expires_at_ms: int


class GrantList(msgspec.Struct, frozen=True, kw_only=True):
    """The reply to ``granted``: newest first."""

    grants: tuple[ListedGrant, ...] = ()
    total: int = 0
