"""The inbox: the approval waits until somebody looks. Nobody is told; the feed and the list do."""

from __future__ import annotations

from rookery.actors.approvals.dispatchers.port import DispatchResult, Pending, Terms
from rookery.schemas.approvals.records import ApprovalRequest

__all__ = ["InboxDispatcher"]


class InboxDispatcher:
    """``rookery approvals list``."""

    name = "inbox"

    async def dispatch(self, request: ApprovalRequest, terms: Terms) -> DispatchResult:
        del request, terms
        return Pending()
