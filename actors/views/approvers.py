"""The approvers of a realm, as every node knows them: whose keys count, a moment after it was said.

Followed from the facts under ``_approvers``, whichever node decided them. What an approver may
answer is the concern's to say, which only asks for a key.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from rookery.actors.approvals.fold import fold
from rookery.actors.approvals.state import APPROVERS_KEY, Approver, SessionApprovals
from rookery.bus.ports import Bus, Filter, Stored
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CodedError
from rookery.schemas.facts import approval as facts

__all__ = ["Approvers"]

log = logging.getLogger(__name__)

_CODEC: FactCodec[facts.ApprovalFact] = FactCodec(facts.APPROVAL_FACTS)
AGAIN_S: Final = 1.0
FAMILY: Final = "approval"


class Approvers:
    """Kept up on the bus's loop; asked from any thread."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._position = 0
        self._state = SessionApprovals()

    def find(self, key_id: str) -> Approver | None:
        """Whose key it is, unless it was revoked."""
        return self._state.approvers.get(key_id)

    async def refresh(self) -> None:
        """Read what was said so far: before this, no key is known."""
        for stored in await self._bus.journal.read(EntityId(FAMILY, APPROVERS_KEY), self._position):
            self._take(stored)

    async def keep_up(self) -> None:
        """Hear of every change. Goes on until cancelled."""
        where = Filter(FAMILY, APPROVERS_KEY)
        while True:
            try:
                async for page in self._bus.feed.follow(where, self._position):
                    for stored in page:
                        self._take(stored)
            except CodedError as error:
                log.warning("approvers are not followed", extra={"code": error.code})
                await asyncio.sleep(AGAIN_S)

    def _take(self, stored: Stored) -> None:
        if stored.sequence <= self._position:
            return
        state = self._state
        for fact in _CODEC.decode(stored.body):
            if isinstance(fact, facts.ApproverAdded | facts.ApproverRevoked):
                state = fold(state, fact)
        self._state, self._position = state, stored.sequence
