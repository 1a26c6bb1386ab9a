"""Approvals as the kernel sees them: the family ``approval``, its machine, its answers.

Every input is taken; that one came to nothing is told with the answer. Who may answer at all, and
what a granted approval lets through, is the broker's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from rookery.actors.approvals.machine import APPROVALS, Approvals
from rookery.actors.kernel.handled import MachinesConcern, Part
from rookery.schemas.answers import ApprovalView
from rookery.schemas.codec import FactCodec
from rookery.schemas.commands import COMMANDS
from rookery.schemas.facts import approval as facts

__all__ = ["ApprovalsConcern", "SessionApprovals"]


class SessionApprovals(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the one machine."""

    approvals: Approvals = Approvals()


def _show(approvals: Approvals, params: Mapping[str, Any]) -> ApprovalView:
    approval_id = str(params.get("approval_id", ""))
    return ApprovalView(
        approval_id=approval_id,
        status=approvals.statuses.get(approval_id),
        approve_allowed=approvals.approve_allowed.get(approval_id, False),
        deny_allowed=approvals.deny_allowed.get(approval_id, False),
        has_expiry=approvals.has_expiry.get(approval_id, False),
    )


class ApprovalsConcern(MachinesConcern):
    """The rules of the family ``approval``."""

    family = "approval"
    verbs: Mapping[str, type[msgspec.Struct]] = {"approvals": COMMANDS["approvals"]}
    codec: FactCodec[facts.ApprovalFact] = FactCodec(facts.APPROVAL_FACTS)
    parts = (Part(APPROVALS, "approvals", _show),)
    start = SessionApprovals()
