"""The client's methods for approvals and grants. ``rookery.actors.approvals`` has the rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from rookery.bus.clock import SystemClock
from rookery.schemas.approvals.decision import DecideApproval, DecisionReceipt
from rookery.schemas.approvals.lists import (
    ApprovalList,
    GrantedQuery,
    GrantList,
    ListedApproval,
    ListedGrant,
    PendingQuery,
)
from rookery.schemas.commands import RevokeGrant
from rookery.schemas.errors import Refused
from rookery.schemas.replies import GrantReceipt

__all__ = ["ApprovalsMixin"]


class ApprovalsMixin(ABC):
    """The part of ``Client`` for approvals."""

    @property
    @abstractmethod
    def realm(self) -> str: ...

    @abstractmethod
    async def ask(self, verb: str, key: str, body: object = None) -> dict[str, Any]:
        """Send a request and return its durable reply."""

    async def approvals(
        self, session: str | None = None, *, ended: bool = False
    ) -> Sequence[ListedApproval]:
        """List waiting approvals, the earliest due first; ``ended`` ones follow."""
        query = PendingQuery(session=session, ended=ended)
        return msgspec.convert(await self.ask("pending", "all", query), ApprovalList).approvals

    async def approval(self, approval_id: str) -> ListedApproval:
        """Read one approval in any state."""
        query = PendingQuery(approval_id=approval_id)
        found = msgspec.convert(await self.ask("pending", "all", query), ApprovalList).approvals
        if not found:
            raise Refused("APPROVAL_NOT_FOUND", f"the realm has no approval {approval_id[:120]!r}")
        return found[0]

    async def decide(
        self,
        approval: ListedApproval,
        decision: Literal["approved", "approved_for_session", "denied"],
        *,
        actor: str,
        reason: str = "",
        sign: Callable[[str, DecideApproval], DecideApproval] | None = None,
    ) -> DecisionReceipt:
        """Answer an approval for exactly the arguments that it shows.

        ``sign`` signs the answer: ``rookery.actors.approvals.signing.Signer.sign``.
        """
        answer = DecideApproval(
            approval_id=approval.approval_id,
            decision=decision,
            actor=actor,
            request_digest=approval.request_digest,
            tool_digest=approval.tool_digest,
            answered_at_ms=SystemClock().now_ms(),
            reason=reason,
        )
        if sign is not None:
            answer = sign(self.realm, answer)
        receipt = await self.ask("decide", approval.session_id, answer)
        return msgspec.convert(receipt, DecisionReceipt)

    async def grants(
        self, session: str | None = None, *, ended: bool = False
    ) -> Sequence[ListedGrant]:
        """List grants, newest first."""
        query = GrantedQuery(session=session, ended=ended)
        return msgspec.convert(await self.ask("granted", "all", query), GrantList).grants

    async def revoke_grant(
        self,
        grant: ListedGrant,
        *,
        actor: str = "",
        sign: Callable[[str, RevokeGrant], RevokeGrant] | None = None,
    ) -> GrantReceipt:
        """Revoke a grant.

        ``sign`` signs it: ``rookery.actors.approvals.signing.Signer.sign_revocation``.
        """
        body = RevokeGrant(grant_id=grant.grant_id, actor=actor)
        if sign is not None:
            body = sign(self.realm, body)
        return msgspec.convert(await self.ask("grants", grant.session_id, body), GrantReceipt)
