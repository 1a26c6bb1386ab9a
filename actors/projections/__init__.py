"""Projections: lists folded from facts, for queries about many entities.

The names here are a node's; ``lists`` answers queries, with or without a node, and ``reports``
reads a journal for the command line.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.projections.realm_projections import RealmProjections, ToolQueryHandler
    from rookery.actors.projections.trust import Approvers, RosterFollower

__all__ = ["Approvers", "RealmProjections", "RosterFollower", "ToolQueryHandler"]

__getattr__ = lazy_names(
    __name__,
    {
        "realm_projections": (
            "RealmProjections",
            "ToolQueryHandler",
        ),
        "trust": (
            "Approvers",
            "RosterFollower",
        ),
    },
)
