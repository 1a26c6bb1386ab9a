"""Projections: lists folded from facts, for queries about many entities."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.projections.approvals import ApprovalProjection, ApprovalQueryHandler
    from rookery.actors.projections.approvers import (
        ApproverReport,
        Approvers,
        ListedApproverKey,
        read_approvers,
    )
    from rookery.actors.projections.nodes import NodeView, nodes_of
    from rookery.actors.projections.realm_projections import RealmProjections, ToolQueryHandler
    from rookery.actors.projections.roster import (
        RosterFollower,
        RosterReport,
        read_roster,
        reported_signers,
    )
    from rookery.actors.projections.run_queries import RunQueryHandler
    from rookery.actors.projections.runs import RunProjection
    from rookery.actors.projections.sessions import SessionQueryHandler, parse_phase

__all__ = [
    "ApprovalProjection",
    "ApprovalQueryHandler",
    "ApproverReport",
    "Approvers",
    "ListedApproverKey",
    "NodeView",
    "RealmProjections",
    "RosterFollower",
    "RosterReport",
    "RunProjection",
    "RunQueryHandler",
    "SessionQueryHandler",
    "ToolQueryHandler",
    "nodes_of",
    "parse_phase",
    "read_approvers",
    "read_roster",
    "reported_signers",
]

__getattr__ = lazy_names(
    __name__,
    {
        "approvals": ("ApprovalProjection", "ApprovalQueryHandler"),
        "approvers": (
            "ApproverReport",
            "Approvers",
            "ListedApproverKey",
            "read_approvers",
        ),
        "nodes": ("NodeView", "nodes_of"),
        "realm_projections": ("RealmProjections", "ToolQueryHandler"),
        "roster": (
            "RosterFollower",
            "RosterReport",
            "read_roster",
            "reported_signers",
        ),
        "run_queries": ("RunQueryHandler",),
        "runs": ("RunProjection",),
        "sessions": ("SessionQueryHandler", "parse_phase"),
    },
)
