"""The approver of an MCP server that was started with an approver's key."""

from __future__ import annotations

from typing import Final, Literal, cast

from rookery.actors.approvals.state import APPROVERS_KEY
from rookery.actors.keys.approver_signatures import Signer
from rookery.actors.projections.reports import ApproverReport
from rookery.bus.client import Client
from rookery.bus.ports import Filter
from rookery.bus.roles import Role, verbs_of
from rookery.ops.config import Config
from rookery.ops.gateways import RealmLink
from rookery.ops.keys import TrustRoots
from rookery.schemas.approvals.lists import ApprovalState
from rookery.schemas.approvals.records import DecisionReceipt
from rookery.schemas.errors import Refused

__all__ = ["McpApprover"]

_DECIDE: Final = "decide"
_Decision = Literal["approved", "approved_for_session", "denied"]


class McpApprover:
    """Signs decisions with a key. It has a connection of its own, with the role ``approver``: the
    credential of the server's other requests cannot decide."""

    def __init__(self, config: Config, signer: Signer) -> None:
        self._link = RealmLink(config, Role.APPROVER)
        self._signer = signer
        self._root_key = TrustRoots.root_key_of(config.approvals)

    def check_role(self) -> None:
        """Refuse a configured credential that cannot decide."""
        named = self._link.find_server().credential
        if named is not None and _DECIDE not in verbs_of(named.role):
            raise Refused(
                "NOT_PERMITTED",
                f"the configured credential {named.name} has the role {named.role} and cannot "
                "decide approvals",
                hint="rookery auth create NAME --role operator, and name its file in "
                "server.credentials_file",
            )

    async def decide(
        self, approval_id: str, decision: ApprovalState, reason: str
    ) -> DecisionReceipt:
        """Answer an approval, with the signature of the key."""
        client = await self._link.client()
        approval = await client.approval(approval_id)
        return await client.decide(
            approval,
            cast("_Decision", decision.value),
            actor=await self._name(client),
            reason=reason,
            sign=self._signer.sign,
        )

    async def close(self) -> None:
        await self._link.close()

    async def _name(self, client: Client) -> str:
        """The name that the key was added under."""
        pages = client.journal.scan(Filter("approval", APPROVERS_KEY))
        messages = [stored async for page in pages for stored in page]
        keys = ApproverReport.read(messages, client.realm, self._root_key).keys
        names = [one.name for one in keys if one.key_id == self._signer.key_id]
        if not names:
            raise Refused(
                "APPROVER_UNKNOWN",
                f"the key {self._signer.key_id} is no approver's in this realm",
                hint="rookery approvers add NAME --key FILE",
            )
        return names[-1]
