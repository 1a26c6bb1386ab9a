"""What the messages of one node are until a checkpoint covers them: sequence, entity and digest.

Flat arrays, 44 bytes a message, because a minute of a busy node is a million messages.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from rookery.schemas.envelope import EntityId

__all__ = ["MESSAGES_MAX", "EntityTable", "NodeLog", "SignedSpan"]

MESSAGES_MAX: Final = 2_000_000
"""Of one node without a checkpoint; of more the oldest are dropped, as not proven."""
_DIGEST_BYTES: Final = 32


class EntityTable:
    """Numbers for entities."""

    def __init__(self) -> None:
        self._numbers: dict[EntityId, int] = {}
        self._entities: list[EntityId] = []

    def number(self, entity: EntityId) -> int:
        found = self._numbers.get(entity)
        if found is None:
            found = self._numbers[entity] = len(self._entities)
            self._entities.append(entity)
        return found

    def entity(self, number: int) -> EntityId:
        return self._entities[number]


class SignedSpan(NamedTuple):
    """Messages of a node."""

    messages: int
    heads: dict[EntityId, str]
    """The chain digest of each entity's last message."""
    first: int
    last: int


class NodeLog:
    """The messages of one node that no checkpoint covers yet, in order."""

    def __init__(self, entities: EntityTable) -> None:
        self._entities = entities
        self._sequences, self._numbers = array("Q"), array("L")
        self._chains = bytearray()

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def first(self) -> int:
        return self._sequences[0]

    @property
    def last(self) -> int:
        return self._sequences[-1]

    def add(self, sequence: int, entity: EntityId, chain: str) -> None:
        self._sequences.append(sequence)
        self._numbers.append(self._entities.number(entity))
        self._chains += bytes.fromhex(chain)

    def pop_through(self, sequence: int, leave_out: frozenset[str] = frozenset()) -> SignedSpan:
        """Remove the messages up to a sequence, and return them without those of these digests."""
        count = bisect_right(self._sequences, sequence)
        places: Sequence[int] = range(count)
        if leave_out:
            places = [place for place in places if self._chain(place) not in leave_out]
        numbers = self._numbers
        lasts = {numbers[place]: place for place in places}
        heads = {self._entities.entity(n): self._chain(place) for n, place in lasts.items()}
        span = SignedSpan(0, heads, 0, 0)
        if places:
            sequences = self._sequences
            span = SignedSpan(len(places), heads, sequences[places[0]], sequences[places[-1]])
        del self._sequences[:count], self._numbers[:count]
        del self._chains[: count * _DIGEST_BYTES]
        return span

    def _chain(self, index: int) -> str:
        start = index * _DIGEST_BYTES
        return self._chains[start : start + _DIGEST_BYTES].hex()
