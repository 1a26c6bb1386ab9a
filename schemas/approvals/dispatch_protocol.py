"""What an outside approver is sent, and what it may say at once: the bodies of ``service`` and
``webhook``.

The arguments are not in it: it names them by digest, and tells what may be read by anybody. A
decision is the same ``DecideApproval`` however it comes.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rookery.schemas.approvals.decision import DecideApproval
from rookery.schemas.approvals.records import ApprovalRequest

__all__ = ["ApprovalDispatch", "DispatchOutcome", "DispatchReply"]


class ApprovalDispatch(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody's word is asked for."""

    realm: str
    approval_id: str
    request_digest: str
    """An answer repeats these two."""
    due_ms: int
    """Unix time after which no answer counts."""
    request: ApprovalRequest


class DispatchOutcome(StrEnum):
    DECIDED = "decided"
    PENDING = "pending"
    """The answer will come later, by ``decide``."""
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    UNAVAILABLE = "unavailable"


class DispatchReply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What whoever was asked says at once."""

    outcome: DispatchOutcome
    answer: DecideApproval | None = None
    """Of ``decided``, and of no other."""
    reason_code: str = ""
    """Of ``unavailable``."""
