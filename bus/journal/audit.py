"""Is the journal what was written? Each entity's messages are a chain of digests.

``ChainAudit`` follows the chains over messages in journal order. It finds what was changed, swapped
or removed between two messages of an entity; that an entity's newest messages are missing only
shows against a copy kept elsewhere. Such a copy is an export: ``rookery.bus.journal.export``.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from rookery.bus.ports import Filter, StoredMessage
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import Failed

__all__ = ["AuditResult", "AuditScope", "ChainAudit", "scope_of"]


class AuditScope(StrEnum):
    """What of each entity is there to be looked at."""

    WHOLE = "whole"
    """Every message from the first."""
    TAIL = "tail"
    """Every message from some point on: an entity's first may continue what is not here."""
    PARTS = "parts"
    """Messages with others missing between them: a link that does not fit proves nothing."""


def scope_of(where: Filter, after: int) -> AuditScope:
    """What a scan gives to see."""
    if where.run is not None:
        return AuditScope.PARTS
    return AuditScope.TAIL if after else AuditScope.WHOLE


class AuditResult(msgspec.Struct):
    """What has been looked at."""

    messages: int = 0
    verified: int = 0
    """Messages found to continue their entity's chain. Of a whole journal, all of them."""
    entities: int = 0
    headless: int = 0
    """Entities whose beginning is not among the messages."""


class ChainAudit:
    """Messages in journal order, each against the one before it of its entity."""

    def __init__(self, extent: AuditScope = AuditScope.WHOLE) -> None:
        self.audit = AuditResult()
        self._scope = extent
        self._last_chains: dict[EntityId, str] = {}
        self._sequence = 0

    def add(self, stored: StoredMessage) -> None:
        """Look at the next message; ``Failed`` CHAIN_BROKEN if it cannot follow."""
        if stored.sequence <= self._sequence:
            raise _broken(stored, f"it comes after message {self._sequence}")
        self._sequence = stored.sequence
        audit, entity = self.audit, stored.entity
        previous = self._last_chains.get(entity)
        fits = _follows(previous or ZERO_CHAIN, stored)
        first = previous is None
        if not fits and not self._may_be_missing(first=first):
            raise _broken(
                stored,
                "its digest is not that of the entity's chain and this body"
                if not first
                else "its digest is not that of an entity's first message",
            )
        audit.messages += 1
        audit.verified += fits
        audit.entities += first
        audit.headless += first and not fits
        self._last_chains[entity] = stored.chain

    def _may_be_missing(self, *, first: bool) -> bool:
        return self._scope is AuditScope.PARTS or (first and self._scope is AuditScope.TAIL)


def _follows(previous: str, stored: StoredMessage) -> bool:
    try:
        return chain(previous, stored.body) == stored.chain
    except ValueError:  # The digest before is not even hexadecimal.
        return False


def _broken(stored: StoredMessage, why: str) -> Failed:
    return Failed("CHAIN_BROKEN", f"message {stored.sequence} of {stored.entity}: {why}")
