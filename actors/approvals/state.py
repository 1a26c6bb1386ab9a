"""What approvals keep of a session: who is asked about which call, and what was granted.

Of a call only what a request is made of again, never its arguments. What came to its end is kept
until another run wants something. Data only; what facts make of it is ``fold``'s.

What a realm has decided about its approvals: data, read from its configuration by ``ops``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import msgspec
from immutables import Map

from rookery.actors.approvals.lifecycle_machine import ApprovalStatuses
from rookery.schemas.approvals.records import ApprovalLifecycleStatus
from rookery.schemas.run import SideEffect

__all__ = [
    "APPROVERS_KEY",
    "MESSAGE_MAX",
    "REFUSALS_MAX",
    "REFUSALS_WINDOW_MS",
    "STATE_SCHEMA",
    "ApprovalRequestState",
    "ApprovalSettings",
    "Approver",
    "Grant",
    "GrantPhase",
    "RefusalWindow",
    "SessionApprovals",
    "SessionGrant",
]

STATE_SCHEMA = 3
REFUSALS_WINDOW_MS = 60_000
REFUSALS_MAX = 10
"""Recorded a minute and session: whoever sends more is still refused."""
MESSAGE_MAX = 300
"""Of a refusal's words on record: they may repeat what was sent."""
APPROVERS_KEY = "_approvers"
"""The one entity of the realm's approvers."""


class ApprovalRequestState(msgspec.Struct, frozen=True, kw_only=True):
    """One call, as somebody was asked about it last."""

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
    due_ms: int = 0
    """0 if nobody was asked."""
    status: ApprovalLifecycleStatus = ApprovalLifecycleStatus.REQUESTED
    reason_code: str = ""
    grant_id: str = ""
    answer_digest: str = ""
    """Of the answer that counts."""
    verified: bool = False
    escalated: bool = False

    @property
    def is_pending(self) -> bool:
        """Whether an answer would count."""
        return self.status in _PENDING


_PENDING = (
    ApprovalLifecycleStatus.REQUESTED,
    ApprovalLifecycleStatus.DISPATCH_INTENT_RECORDED,
)


class GrantPhase(StrEnum):
    ISSUED = "issued"
    CONSUMED = "consumed"
    EXPIRED = "expired"
    REVOKED = "revoked"


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Leave for one call with exactly these arguments."""

    grant_id: str
    approval_id: str
    operation_id: str
    request_digest: str
    expires_at_ms: int
    session_grant_id: str = ""
    state: GrantPhase = GrantPhase.ISSUED


class SessionGrant(msgspec.Struct, frozen=True, kw_only=True):
    """Leave for every call of a tool in one life of the session, as long as it is ``issued``."""

    grant_id: str
    tool: str
    policy: str
    generation: int
    expires_at_ms: int
    state: GrantPhase = GrantPhase.ISSUED


class RefusalWindow(msgspec.Struct, frozen=True, kw_only=True):
    """How many refused answers were recorded in the present minute."""

    since_ms: int = 0
    count: int = 0

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether the next one is refused and not recorded."""
        return now_ms - self.since_ms < REFUSALS_WINDOW_MS and self.count >= REFUSALS_MAX


class Approver(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody whose key counts."""

    name: str
    key_id: str
    public_key: str


class SessionApprovals(msgspec.Struct, frozen=True, kw_only=True):
    """All there is under one key."""

    approvals: ApprovalStatuses = ApprovalStatuses()
    """approval_lifecycle's view of it."""
    generation: int = 0
    run: str = ""
    """The last run that wanted anything."""
    asked: Map[str, ApprovalRequestState] = Map()
    """By operation."""
    grants: Map[str, Grant] = Map()
    session_grants: Map[str, SessionGrant] = Map()
    in_run: Map[str, int] = Map()
    """How often each tool was wanted."""
    in_session: Map[str, int] = Map()
    records: int = 0
    """Records of the run so far."""
    refusals: RefusalWindow = RefusalWindow()
    approvers: Map[str, Approver] = Map()
    """By key id; only under ``_approvers``."""
    changes: int = 0
    """How often an approver was added or revoked."""

    def request_of_approval(self, approval_id: str) -> ApprovalRequestState | None:
        """The call of an approval, asked for this time."""
        operation_id = approval_id.split(".")[1] if "." in approval_id else ""
        asked = self.asked.get(operation_id)
        return asked if asked is not None and asked.approval_id == approval_id else None


class ApprovalSettings(NamedTuple):
    """The same on every node of a realm."""

    realm: str = "default"
    dispatchers: tuple[str, ...] = ("inbox",)
    """Who is asked; nobody is an answer, too."""
    escalate_to: tuple[str, ...] = ()
    escalate_after_ms: int = 0
    """0 never."""
    timeout_ms: int = 24 * 3_600_000
    grant_ttl_ms: int = 24 * 3_600_000
    session_grant_ttl_ms: int = 24 * 3_600_000
    require_keys: bool = False
    """An answer that no approver's key has signed does not count."""
    root_key: str = ""
    """Public key, in hex, that may name approvers whoever else may; without one the first approver
    is taken as named."""
