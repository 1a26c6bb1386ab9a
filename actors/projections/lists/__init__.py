"""The lists of a realm: runs, sessions, approvals and hooks, each with the query for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rookery.schemas.lazy_names import lazy_names

if TYPE_CHECKING:
    from rookery.actors.projections.lists.approvals import ApprovalProjection, ApprovalQueryHandler
    from rookery.actors.projections.lists.run_queries import RunQueryHandler
    from rookery.actors.projections.lists.runs import RunProjection
    from rookery.actors.projections.lists.sessions import SessionQueryHandler

__all__ = [
    "ApprovalProjection",
    "ApprovalQueryHandler",
    "RunProjection",
    "RunQueryHandler",
    "SessionQueryHandler",
]

__getattr__ = lazy_names(
    __name__,
    {
        "approvals": (
            "ApprovalProjection",
            "ApprovalQueryHandler",
        ),
        "run_queries": ("RunQueryHandler",),
        "runs": ("RunProjection",),
        "sessions": ("SessionQueryHandler",),
    },
)
