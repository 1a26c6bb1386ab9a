"""Approvals: questions to approvers about calls, their decisions, and the grants these issue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.approvals.decider import ApprovalsDecider
    from rookery.actors.approvals.executor import ApprovalExecutor
    from rookery.actors.approvals.lifecycle_machine import APPROVALS
    from rookery.actors.approvals.rules import check_rule
    from rookery.actors.approvals.signing import (
        KEY_BYTES,
        Signer,
        read_private_key,
        read_public_key,
    )
    from rookery.actors.approvals.state import (
        APPROVERS_KEY,
        ApprovalSettings,
        Approver,
        SessionApprovals,
    )

__all__ = [
    "APPROVALS",
    "APPROVERS_KEY",
    "KEY_BYTES",
    "ApprovalExecutor",
    "ApprovalSettings",
    "ApprovalsDecider",
    "Approver",
    "SessionApprovals",
    "Signer",
    "check_rule",
    "read_private_key",
    "read_public_key",
]

__getattr__ = lazy_names(
    __name__,
    {
        "decider": ("ApprovalsDecider",),
        "executor": ("ApprovalExecutor",),
        "lifecycle_machine": ("APPROVALS",),
        "rules": ("check_rule",),
        "signing": ("KEY_BYTES", "Signer", "read_private_key", "read_public_key"),
        "state": ("APPROVERS_KEY", "ApprovalSettings", "Approver", "SessionApprovals"),
    },
)
