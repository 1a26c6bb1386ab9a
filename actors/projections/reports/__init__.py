"""Reports of a realm's nodes, approvers and peers, read from the journal without a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.projections.reports.nodes import NodeView, nodes_of
    from rookery.actors.projections.reports.trust_reports import (
        ApproverReport,
        ListedApproverKey,
        RosterReport,
    )

__all__ = ["ApproverReport", "ListedApproverKey", "NodeView", "RosterReport", "nodes_of"]

__getattr__ = lazy_names(
    __name__,
    {
        "nodes": (
            "NodeView",
            "nodes_of",
        ),
        "trust_reports": (
            "ApproverReport",
            "ListedApproverKey",
            "RosterReport",
        ),
    },
)
