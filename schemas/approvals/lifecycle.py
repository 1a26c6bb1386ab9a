"""Approvals as they travel: the words of approval_lifecycle.

The rules are ``actors/approvals``'.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["ApprovalAnswer", "ApprovalRejection", "ApprovalStatus"]


class ApprovalStatus(StrEnum):
    """Where an approval stands in the inbox."""

    PENDING = "Pending"
    APPROVED = "Approved"
    DENIED = "Denied"
    EXPIRED = "Expired"
    CANCELLED = "Cancelled"
    """Only a restored record says so."""


class ApprovalAnswer(StrEnum):
    """What somebody may say to a pending approval."""

    APPROVE = "Approve"
    DENY = "Deny"


class ApprovalRejection(StrEnum):
    """Why what was asked of an approval came to nothing."""

    EMPTY_ALLOWED_DECISIONS = "EmptyAllowedDecisions"
    ALREADY_EXISTS = "AlreadyExists"
    INVALID_RESTORED_RECORD = "InvalidRestoredRecord"
    NOT_FOUND = "NotFound"
    EXPIRED = "Expired"
    ALREADY_DECIDED = "AlreadyDecided"
    INVALID_DECISION = "InvalidDecision"
