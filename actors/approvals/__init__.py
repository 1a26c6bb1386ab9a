"""Approvals: questions to approvers about calls, their decisions, and the grants these issue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.approvals.approvers import ApproverLine
    from rookery.actors.approvals.decider import ApprovalsDecider
    from rookery.actors.approvals.executor import ApprovalExecutor
    from rookery.actors.approvals.grant_proofs import GrantProofs
    from rookery.actors.approvals.grants import is_made_by_node

__all__ = ["ApprovalExecutor", "ApprovalsDecider", "ApproverLine", "GrantProofs", "is_made_by_node"]

__getattr__ = lazy_names(
    __name__,
    {
        "approvers": ("ApproverLine",),
        "decider": ("ApprovalsDecider",),
        "executor": ("ApprovalExecutor",),
        "grant_proofs": ("GrantProofs",),
        "grants": ("is_made_by_node",),
    },
)
