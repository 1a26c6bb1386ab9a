"""Revocations: the query that takes rights away, and what every node reads of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Protocol

from rookery.actors.kernel.executors import AskActor
from rookery.actors.messages import FactRecorded, RecordFact
from rookery.actors.protection.checks import check_rights
from rookery.bus.ports import Bus, Delivery, EntityFollower, StoredMessage
from rookery.schemas.codec import FactCodec, decode_command
from rookery.schemas.commands import RevokeRights, SessionQuery
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Refused
from rookery.schemas.facts.node import RIGHTS_KEY, RightsRevoked
from rookery.schemas.ids import check_client_session
from rookery.schemas.protection.rights import Rights, RightsSet, intersect
from rookery.schemas.replies import RevocationReceipt, SessionView

__all__ = [
    "REVOCATIONS",
    "LeftRights",
    "Revocations",
    "RightsRevoker",
    "nothing_revoked",
]

# --- revocations ----------------------------------------------------------------------------------

# What operators revoked in the realm's sessions, read on every node.
#
# Every node follows these facts. After an error that may have cost it one, it allows no call until
# it has read all of them again.


REVOCATIONS: Final = EntityId("node", RIGHTS_KEY)
WAIT_S: Final = 5.0
_CODEC: FactCodec[RightsRevoked] = FactCodec(RightsRevoked)
_NOTHING: Final[RightsSet] = (Rights(tools=()),)


class LeftRights(Protocol):
    """What revocations leave of a session's rights."""

    def __call__(self, session: str, descends_from: Iterable[str] = ()) -> RightsSet:
        """The rights that are left, in addition to any others."""


def nothing_revoked(session: str, descends_from: Iterable[str] = ()) -> RightsSet:
    """Of a node without revocations."""
    del session, descends_from
    return ()


class Revocations(EntityFollower):
    """The rights that are left, by session."""

    name = "revocations"
    when_unavailable = "no call is allowed"

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, REVOCATIONS)
        self._left: dict[str, RightsSet] = {}
        self._changed = asyncio.Event()

    def left_for(self, session: str, descends_from: Iterable[str] = ()) -> RightsSet:
        """What a session may still call after the revocations in it and in its origins."""
        if self.unavailable_reason:
            return _NOTHING
        left = self._left
        if not left:
            return ()
        return intersect(*(left[one] for one in (session, *descends_from) if one in left))

    async def wait_for(self, session: str, rights: Rights) -> None:
        """Wait until calls on this node meet a recorded revocation."""
        async with asyncio.timeout(WAIT_S):
            while not self.unavailable_reason and rights not in self.left_for(session):
                self._changed.clear()
                await self._changed.wait()

    def reset(self) -> None:
        self._left = {}

    def apply(self, stored: StoredMessage) -> None:
        for fact in _CODEC.decode(stored.body):
            self.add(fact)

    def add(self, fact: RightsRevoked) -> None:
        """Apply a revocation."""
        left = intersect(self._left.get(fact.session_id, ()), (fact.rights,))
        self._left = {**self._left, fact.session_id: left}
        self._changed.set()


# --- revoker --------------------------------------------------------------------------------------

# The query ``revoke``: takes rights from a session and from all that descend from it.
#
# The revocation is a fact of the realm, not of the session: so it holds for every generation of the
# session, and for sessions that are forked or restored from it later.


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
