"""What operators revoked in the realm's sessions, read on every node.

Every node follows these facts. After an error that may have cost it one, it allows no call until
it has read all of them again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final, Protocol

from rookery.bus.ports import Bus, Filter, StoredMessage
from rookery.schemas.codec import FactCodec
from rookery.schemas.digest import ChainCursor
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CODES, CodedError, Failed
from rookery.schemas.facts.node import RIGHTS_KEY, RightsRevoked
from rookery.schemas.protection.rights import Rights, RightsSet, intersect

__all__ = ["REVOCATIONS", "LeftRights", "Revocations", "nothing_revoked"]

log = logging.getLogger(__name__)

REVOCATIONS: Final = EntityId("node", RIGHTS_KEY)
RETRY_S: Final = 1.0
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


class Revocations:
    """The rights that are left, by session. Updated on the bus's loop, read on any thread."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._position, self._cursor = 0, ChainCursor()
        self._left: dict[str, RightsSet] = {}
        self._changed = asyncio.Event()
        self.unavailable_reason = "not read yet"
        """Why no call is allowed; empty while all facts are known."""

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

    async def open(self) -> None:
        """Read all facts. If one is damaged, no call is allowed and everything else works."""
        try:
            await self._refresh()
        except CodedError as error:
            if CODES[error.code].retryable:
                raise
            self._on_error(error)

    async def run(self) -> None:
        """Follow every revocation until cancelled."""
        while True:
            try:
                if self.unavailable_reason:
                    await self._refresh()
                async for page in self._bus.feed.follow(Filter(*REVOCATIONS), self._position):
                    for stored in page:
                        self._apply(stored)
            except Exception as error:  # After any error a revocation may be missing.
                self._on_error(error)
            await asyncio.sleep(RETRY_S)

    async def _refresh(self) -> None:
        self._position, self._cursor, self._left = 0, ChainCursor(), {}
        end = await self._bus.journal.end()
        for stored in await self._bus.journal.read(REVOCATIONS):
            self._apply(stored)
        self._position = max(self._position, end)  # Other keys' messages leave no gap.
        self.unavailable_reason = ""

    def _apply(self, stored: StoredMessage) -> None:
        if stored.sequence <= self._position:
            return
        if stored.quarantined_through:
            self._cursor.pass_over(stored.chain)
            self._position = stored.sequence
            return
        if not self._cursor.accept(stored.body, stored.chain):
            raise Failed("CHAIN_BROKEN", f"{stored.sequence} does not continue {RIGHTS_KEY}")
        for fact in _CODEC.decode(stored.body):
            self.add(fact)
        self._position = stored.sequence

    def add(self, fact: RightsRevoked) -> None:
        """Apply a revocation."""
        left = intersect(self._left.get(fact.session_id, ()), (fact.rights,))
        self._left = {**self._left, fact.session_id: left}
        self._changed.set()

    def _on_error(self, error: Exception) -> None:
        """A lost connection loses no fact: the feed continues at its position."""
        why = error.code if isinstance(error, CodedError) else type(error).__name__
        if why in CODES and CODES[why].retryable:
            log.warning("revocations not followed", extra={"code": why})
        elif why != self.unavailable_reason:
            self.unavailable_reason = why
            log.error("revocations unavailable, no call is allowed", exc_info=error)
