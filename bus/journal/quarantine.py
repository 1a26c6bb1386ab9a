"""The quarantined messages of a journal: damaged ones that every reader skips.

Each was set aside by a fact under the key ``_quarantine``. A bus reads these facts when it starts
and follows them, so a reader that starts anywhere in the journal knows all of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from msgspec.structs import replace

from rookery.bus.ports import Feed, Filter, Journal, StoredMessage
from rookery.schemas.codec import FactCodec
from rookery.schemas.digest import ChainCursor, digest_bytes
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CodedError
from rookery.schemas.facts.node import QUARANTINE_KEY, MessageQuarantined

__all__ = ["QUARANTINE", "Quarantine", "QuarantinedMessage", "quarantined_by"]

log = logging.getLogger(__name__)

QUARANTINE: Final = EntityId("node", QUARANTINE_KEY)
RETRY_S: Final = 1.0
_NO_FACTS: Final = b"[]"
_CODEC: FactCodec[MessageQuarantined] = FactCodec(MessageQuarantined)


class QuarantinedMessage(NamedTuple):
    """What a fact says about a message."""

    sequence: int
    entity: EntityId
    digest: str
    through: int
    code: str
    reason: str
    actor: str


def quarantined_by(stored: StoredMessage) -> list[QuarantinedMessage]:
    """The messages that a message of ``QUARANTINE`` sets aside; none if it is damaged."""
    try:
        facts = _CODEC.decode(stored.body)
    except CodedError:
        return []
    return [
        QuarantinedMessage(
            fact.sequence,
            EntityId(fact.family, fact.key),
            fact.digest,
            max(1, fact.through),
            fact.code,
            fact.reason,
            fact.actor,
        )
        for fact in facts
    ]


class Quarantine:
    """One per bus; lives on its loop."""

    def __init__(self) -> None:
        self._messages: dict[int, QuarantinedMessage] = {}
        self._position, self._cursor = 0, ChainCursor()

    def add(self, stored: StoredMessage) -> list[QuarantinedMessage]:
        """Learn from a message of ``QUARANTINE``; what was not known before. A message that does
        not continue the chain says nothing."""
        if stored.sequence <= self._position:
            return []
        self._position = stored.sequence
        if not self._cursor.accept(stored.body, stored.chain):
            self._cursor.pass_over(stored.chain)
            return []
        new = [one for one in quarantined_by(stored) if one.sequence not in self._messages]
        self._messages |= {one.sequence: one for one in new}
        return new

    def read(self, stored: StoredMessage) -> StoredMessage:
        """The message as readers see it. One that only has the number of a quarantined message, as
        in a replaced journal, is read as it is."""
        found = self._messages.get(stored.sequence)
        if (
            found is None
            or found.entity != stored.entity
            or found.digest != digest_bytes(stored.body)
        ):
            return stored
        return replace(stored, body=_NO_FACTS, quarantined_through=found.through)

    def read_all(self, messages: Iterable[StoredMessage]) -> list[StoredMessage]:
        """The messages as readers see them."""
        if not self._messages:
            return messages if isinstance(messages, list) else list(messages)
        return [self.read(stored) for stored in messages]

    async def load(self, journal: Journal) -> None:
        """Read all facts."""
        for stored in await journal.read(QUARANTINE):
            self.add(stored)

    async def follow(self, feed: Feed, on_new: Callable[[QuarantinedMessage], object]) -> None:
        """Learn of every new fact until cancelled."""
        while True:
            try:
                where = Filter(*QUARANTINE)
                async for page in feed.follow(where, self._position):
                    for stored in page:
                        for one in self.add(stored):
                            on_new(one)
            except CodedError as error:
                log.warning("quarantine not followed", extra={"code": error.code})
            await asyncio.sleep(RETRY_S)
