"""The query ``revoke``: takes rights from a session and from all that descend from it.

The revocation is a fact of the realm, not of the session: so it holds for every generation of the
session, and for sessions that are forked or restored from it later.
"""

from __future__ import annotations

from contextlib import suppress

from rookery.actors.kernel import AskActor, FactRecorded, RecordFact
from rookery.actors.protection.checks import check_rights
from rookery.actors.protection.revocations import Revocations
from rookery.bus.ports import Delivery
from rookery.schemas.codec import decode_command
from rookery.schemas.commands import RevokeRights, SessionQuery
from rookery.schemas.errors import Refused
from rookery.schemas.facts.node import RIGHTS_KEY, RightsRevoked
from rookery.schemas.ids import check_client_session
from rookery.schemas.protection.rights import Rights
from rookery.schemas.replies import RevocationReceipt, SessionView

__all__ = ["RightsRevoker"]


class RightsRevoker:
    """One per node; lives on the bus's loop."""

    def __init__(self, node: str, ask: AskActor, revocations: Revocations) -> None:
        """``revocations``: as this node knows them."""
        self._node, self._ask, self._revocations = node, ask, revocations

    async def reply(self, delivery: Delivery) -> RevocationReceipt:
        """The query ``revoke``. When this returns, the revocation is on record and this node heeds
        it; the others do as soon as the fact reaches them."""
        session = check_client_session(delivery.key)
        command = decode_command(delivery.body, RevokeRights, content_type=delivery.content_type)
        if command.rights == Rights():
            raise Refused(
                "INVALID_ARGUMENT",
                "the revocation names nothing",
                hint='as in {"grants": {"without": [{"tool": "pay"}]}}, or "tools": [] for all',
            )
        revoked = RightsRevoked(
            node=self._node,
            session_id=session,
            rights=check_rights(command.rights),
            reason=command.reason,
            actor=command.actor or delivery.by,
        )
        await self._ask("session", session, SessionQuery(), SessionView)  # Refuses an unknown one.
        await self._ask("node", RIGHTS_KEY, RecordFact(revoked), FactRecorded)
        with suppress(TimeoutError):
            await self._revocations.wait_for(session, command.rights)
        return RevocationReceipt(session_id=session, rights=command.rights)
