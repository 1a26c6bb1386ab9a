"""The inbox dispatcher: the approval waits until an approver reads the list or the feed."""

from __future__ import annotations

from rookery.actors.approvals.dispatchers.port import DispatchResult, Pending, Terms
from rookery.schemas.approvals.records import ApprovalRequest

__all__ = ["InboxDispatcher"]


class InboxDispatcher:
    """Leaves the request pending: ``rookery approvals list`` shows it."""

    name = "inbox"

    async def dispatch(self, request: ApprovalRequest, terms: Terms) -> DispatchResult:
        del request, terms
        return Pending()
