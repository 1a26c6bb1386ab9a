"""Approvals and grants as lists show them, and what may be asked of these lists.

Read models' words: nothing is decided by them, and they hold no argument's value.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rookery.schemas.integers import PageLimit

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
    """How an approval stands. All but the first are ends."""

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
    """Ask for the realm's approvals (verb ``pending``, any key); leaves no fact."""

    approval_id: str | None = None
    """Only this one, however it stands."""
    session: str | None = None
    ended: bool = False
    """Also those that have come to an end, as far back as they are kept."""
    limit: PageLimit = 1_000


class GrantedQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ask for the realm's grants (verb ``granted``, any key); leaves no fact."""

    session: str | None = None
    ended: bool = False
    """Also those that allow nothing any more, as far back as they are kept."""
    limit: PageLimit = 1_000


class ListedApproval(msgspec.Struct, frozen=True, kw_only=True):
    """One call that wants, or wanted, somebody's word."""

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
    """Of the arguments, without a value of theirs."""
    request_digest: str
    """Of the exact arguments; an answer repeats it."""
    arguments_ref: str
    """Where they stand, for whoever may see them."""
    requested_at_ms: int
    due_ms: int
    why: str = ""
    dispatchers: tuple[str, ...] = ()
    """Who was asked."""
    state: ApprovalState = ApprovalState.PENDING
    reason_code: str = ""
    reason: str = ""
    actor: str = ""
    """Who answered."""
    verified: bool = False
    ended_at_ms: int | None = None
    answers_refused: int = 0
    """As far as they are on record."""


class ApprovalList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``pending``: those due soonest first, then those that ended, newest first."""

    approvals: tuple[ListedApproval, ...] = ()
    total: int = 0
    """How many there are of those that were asked for."""


class ListedGrant(msgspec.Struct, frozen=True, kw_only=True):
    """What somebody's word allows: one call, or a tool for the rest of a session."""

    grant_id: str
    session_id: str
    approval_id: str
    operation_id: str | None = None
    """Of a grant for one call."""
    tool: str
    policy: str
    actor: str = ""
    state: GrantState = GrantState.ISSUED
    issued_at_ms: int
    expires_at_ms: int


class GrantList(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to ``granted``: newest first."""

    grants: tuple[ListedGrant, ...] = ()
    total: int = 0
