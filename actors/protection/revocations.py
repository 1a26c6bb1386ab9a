"""What operators revoked in the realm's sessions, read on every node.

Every node follows these facts. After an error that may have cost it one, it allows no call until
it has read all of them again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final, Protocol

from rookery.bus.ports import Bus, EntityFollower, StoredMessage
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import EntityId
from rookery.schemas.facts.node import RIGHTS_KEY, RightsRevoked
from rookery.schemas.protection.rights import Rights, RightsSet, intersect

__all__ = ["REVOCATIONS", "LeftRights", "Revocations", "nothing_revoked"]

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
