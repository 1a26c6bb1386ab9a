"""Vocabulary of the machine approval_lifecycle. ``actors/approvals`` has its rules."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["ApprovalAnswer", "ApprovalRejection", "ApprovalStatus"]


class ApprovalStatus(StrEnum):
    """State of an approval in the inbox."""

    PENDING = "Pending"
    APPROVED = "Approved"
    DENIED = "Denied"
    EXPIRED = "Expired"
    CANCELLED = "Cancelled"
    """Occurs in restored records only."""


class ApprovalAnswer(StrEnum):
    """Possible answers to a pending approval."""

    APPROVE = "Approve"
    DENY = "Deny"


class ApprovalRejection(StrEnum):
    """Why an input to an approval had no effect."""

    EMPTY_ALLOWED_DECISIONS = "EmptyAllowedDecisions"
    ALREADY_EXISTS = "AlreadyExists"
    INVALID_RESTORED_RECORD = "InvalidRestoredRecord"
    NOT_FOUND = "NotFound"
    EXPIRED = "Expired"
    ALREADY_DECIDED = "AlreadyDecided"
    INVALID_DECISION = "InvalidDecision"
