"""The audit of the journal: the messages of each entity form a chain of digests.

``ChainAudit`` checks the chains over messages in journal order. It finds messages that were
changed, swapped or removed between two messages of an entity. Missing newest messages show only by
comparison with an export (``rookery.bus.journal.export``).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from rookery.bus.ports import Filter, StoredMessage
from rookery.schemas.digest import ZERO_CHAIN, chain
from rookery.schemas.envelope import HELD_BY, EntityId
from rookery.schemas.errors import Failed

__all__ = ["AuditResult", "AuditScope", "ChainAudit", "scope_of"]


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
