"""The approvers of a realm, as every node knows them: whose keys count, a moment after it was said.

Followed from the facts under ``_approvers``, whichever node decided them. A view that cannot say
what came is blind: nobody counts until it has read everything anew, for what it missed may have
revoked a key. What an approver may answer is the concern's to say, which only asks for a key.

The keys of a realm's approvers as a list shows them, revoked ones included.

Which of them counts is ``approvers``' to say, by the rules of the family.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

import msgspec

from rookery.actors.approvals.evolve import evolve
from rookery.actors.approvals.state import APPROVERS_KEY, Approver, SessionApprovals
from rookery.bus.ports import Bus, Filter, StoredMessage
from rookery.schemas.codec import FactCodec
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CODES, CodedError, Failed
from rookery.schemas.facts import approval as facts
from rookery.schemas.facts.approval import (
    ApproverAdded,
    ApproverRevoked,
)

__all__ = ["Approvers", "ListedApproverKey", "change_count", "keys_of"]

log = logging.getLogger(__name__)

_CODEC: FactCodec[facts.ApprovalFact] = FactCodec(facts.APPROVAL_FACTS)
RETRY_S: Final = 1.0
FAMILY: Final = "approval"
NOT_READ_YET: Final = "not read yet"


class Approvers:
    """Kept up on the bus's loop; asked from any thread."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._position, self._chain = 0, ZERO_CHAIN
        self._state = SessionApprovals()
        self.unavailable_reason = NOT_READ_YET
        """Why nobody counts just now; empty while what was said is known."""

    def approver_of(self, key_id: str) -> Approver | None:
        """Whose key it is, unless it was revoked, or may have been."""
        return None if self.unavailable_reason else self._state.approvers.get(key_id)

    async def refresh(self) -> None:
        """Read everything that was said: before this, no key is known."""
        self._position, self._chain = 0, ZERO_CHAIN
        self._state = SessionApprovals()
        end = await self._bus.journal.end()
        for stored in await self._bus.journal.read(EntityId(FAMILY, APPROVERS_KEY)):
            self._apply(stored)
        self._position = max(self._position, end)  # What others' messages lack is no gap of ours.
        self.unavailable_reason = ""

    async def run(self) -> None:
        """Hear of every change. Goes on until cancelled."""
        while True:
            try:
                await self._follow()
            except Exception as error:  # Whatever it is, who cannot see trusts nobody.
                self._on_error(error)
            await asyncio.sleep(RETRY_S)

    async def _follow(self) -> None:
        if self.unavailable_reason:
            await self.refresh()
            log.info("approvers are known")
        async for page in self._bus.feed.follow(Filter(FAMILY, APPROVERS_KEY), self._position):
            for stored in page:
                self._apply(stored)

    def _apply(self, stored: StoredMessage) -> None:
        if stored.sequence <= self._position:
            return
        linked = chain(self._chain, stored.body)
        if linked != stored.chain:
            raise Failed("CHAIN_BROKEN", f"{stored.sequence} does not continue {APPROVERS_KEY}")
        state = self._state
        for fact in _CODEC.decode(stored.body):
            if isinstance(fact, facts.ApproverAdded | facts.ApproverRevoked):
                state = evolve(state, fact)
        self._state, self._position, self._chain = state, stored.sequence, linked

    def _on_error(self, error: Exception) -> None:
        """Said once, until it is another error: it may be met every second."""
        why = error.code if isinstance(error, CodedError) else type(error).__name__
        if why in CODES and CODES[why].retryable:
            log.warning("approvers are not followed", extra={"code": why})
        elif why != self.unavailable_reason:
            self.unavailable_reason = why
            log.error("approvers are not known, none counts", exc_info=error)


class ListedApproverKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key of an approver."""

    name: str
    key_id: str
    public_key: str
    added_at_ms: int
    revoked_at_ms: int | None = None


def keys_of(messages: Iterable[StoredMessage]) -> list[ListedApproverKey]:
    """All keys there ever were, in the order in which they were added last."""
    keys: dict[tuple[str, str], ListedApproverKey] = {}
    for stored in messages:
        for fact in _CODEC.decode(stored.body):
            match fact:
                case ApproverAdded():
                    keys.pop((fact.name, fact.key_id), None)
                    keys[fact.name, fact.key_id] = ListedApproverKey(
                        name=fact.name,
                        key_id=fact.key_id,
                        public_key=fact.public_key,
                        added_at_ms=fact.at_ms,
                    )
                case ApproverRevoked() if known := keys.get((fact.name, fact.key_id)):
                    keys[fact.name, fact.key_id] = msgspec.structs.replace(
                        known, revoked_at_ms=fact.at_ms
                    )
    return list(keys.values())


def change_count(messages: Iterable[StoredMessage]) -> int:
    """How often a key was added or revoked."""
    told = (fact for stored in messages for fact in _CODEC.decode(stored.body))
    return sum(isinstance(fact, ApproverAdded | ApproverRevoked) for fact in told)
