"""Messages to an outside approver and back: the bodies of ``service`` and ``webhook``.

A message names the arguments by digest and has the parts that any reader may see. A decision is a
``DecideApproval``, as on every other way.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rookery.schemas.approvals.decision import DecideApproval
from rookery.schemas.approvals.records import ApprovalRequest

__all__ = ["ApprovalDispatch", "DispatchOutcome", "DispatchReply"]


class ApprovalDispatch(msgspec.Struct, frozen=True, kw_only=True):
    """A request for an approval."""

    realm: str
    approval_id: str
    request_digest: str
    """The answer repeats this and ``approval_id``."""
    due_ms: int
    """Unix time in milliseconds at which the request expires."""
    request: ApprovalRequest


class DispatchOutcome(StrEnum):
    DECIDED = "decided"
    PENDING = "pending"
    """The answer follows by ``decide``."""
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
    UNAVAILABLE = "unavailable"


class DispatchReply(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The immediate reply of an outside approver."""

    outcome: DispatchOutcome
    answer: DecideApproval | None = None
    """Set with ``decided`` only."""
    reason_code: str = ""
    """Set with ``unavailable`` only."""
