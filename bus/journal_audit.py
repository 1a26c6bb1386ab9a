"""The audit of the journal's digest chains, and its quarantined messages."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from rookery.bus.ports import Filter, Journal, StoredMessage
from rookery.bus.ports.journal import Feed
from rookery.schemas.codec import FactCodec
from rookery.schemas.digest import ZERO_CHAIN, ChainCursor, chain, digest_bytes
from rookery.schemas.envelope import HELD_BY, EntityId
from rookery.schemas.errors import CodedError, Failed
from rookery.schemas.facts.node import QUARANTINE_KEY, MessageQuarantined

__all__ = [
    "QUARANTINE",
    "AuditResult",
    "AuditScope",
    "ChainAudit",
    "Quarantine",
    "QuarantinedMessage",
    "quarantined_by",
    "scope_of",
]

# --- audit ----------------------------------------------------------------------------------------

# The audit of the journal: the messages of each entity form a chain of digests.
#
# ``ChainAudit`` checks the chains over messages in journal order. It finds messages that were
# changed, swapped or removed between two messages of an entity. Missing newest messages show only
# by comparison with an export (``rookery.bus.journal_export``).


class AuditScope(StrEnum):
    """Which messages of each entity an audit sees."""

    WHOLE = "whole"
    """Every message from the first."""
    TAIL = "tail"
    """Every message from some sequence on: an entity's first may continue an unseen chain."""
    PARTS = "parts"
    """A selection of messages: a digest that does not continue the chain proves no damage."""


def scope_of(where: Filter, after: int) -> AuditScope:
    """The scope of a scan with this filter and start."""
    if where.run is not None or where.family in HELD_BY:
        return AuditScope.PARTS
    return AuditScope.TAIL if after else AuditScope.WHOLE


class AuditResult(msgspec.Struct):
    """The counts of an audit."""

    messages: int = 0
    verified: int = 0
    """Messages that continue their entity's chain; in a whole journal, all."""
    entities: int = 0
    headless: int = 0
    """Entities whose first message was not seen."""


class ChainAudit:
    """Checks messages, in journal order, each against its entity's message before."""

    def __init__(self, scope: AuditScope = AuditScope.WHOLE) -> None:
        self.audit = AuditResult()
        self._scope = scope
        self._last_chains: dict[EntityId, str] = {}
        self._rejected_chains: dict[EntityId, str] = {}
        """By entity, what the last message that ``examine`` rejected says its digest is."""
        self._sequence = 0

    def add(self, stored: StoredMessage) -> None:
        """Check the next message; ``Failed`` CHAIN_BROKEN if it cannot follow."""
        if stored.sequence <= self._sequence:
            raise _broken(stored, f"it follows message {self._sequence}")
        self._sequence = stored.sequence
        audit, entity = self.audit, stored.entity
        previous = self._last_chains.get(entity)
        rejected = self._rejected_chains.pop(entity, None)
        fits = _follows(previous or ZERO_CHAIN, stored) or (
            rejected is not None and _follows(rejected, stored)
        )
        first = previous is None
        if not fits and not self._may_be_missing(first=first):
            raise _broken(
                stored,
                "its digest does not continue the entity's chain with this body"
                if not first
                else "its digest is not the digest of an entity's first message",
            )
        audit.messages += 1
        audit.verified += fits
        audit.entities += first
        audit.headless += first and not fits
        self._last_chains[entity] = stored.chain

    def examine(self, stored: StoredMessage) -> Failed | None:
        """As ``add``, but return the error and go on: the entity's next message may follow the
        rejected one, if that was damaged, or the one before it, if that is foreign."""
        try:
            self.add(stored)
        except Failed as broken:
            self._rejected_chains[stored.entity] = stored.chain
            return broken
        return None

    @property
    def heads(self) -> Iterable[tuple[EntityId, str]]:
        """The last chain digest of each entity."""
        return self._last_chains.items()

    def _may_be_missing(self, *, first: bool) -> bool:
        return self._scope is AuditScope.PARTS or (first and self._scope is AuditScope.TAIL)


def _follows(previous: str, stored: StoredMessage) -> bool:
    try:
        return chain(previous, stored.body) == stored.chain
    except ValueError:  # The digest before is not hexadecimal.
        return False


def _broken(stored: StoredMessage, reason: str) -> Failed:
    return Failed("CHAIN_BROKEN", f"message {stored.sequence} of {stored.entity}: {reason}")


# --- quarantine -----------------------------------------------------------------------------------

# The quarantined messages of a journal: damaged ones that every reader skips.
#
# Each was set aside by a fact under the key ``_quarantine``. A bus reads these facts when it starts
# and follows them, so a reader that starts anywhere in the journal knows all of them.


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
