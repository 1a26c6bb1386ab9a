"""The messages of one node between checkpoints, and the keys of nodes that count."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET

from rookery.actors.keys.ed25519 import key_id_of
from rookery.ops.keys import TrustRoots
from rookery.schemas.envelope import EntityId
from rookery.schemas.facts.node import Started

__all__ = [
    "MESSAGES_MAX",
    "EntityTable",
    "NodeKeys",
    "NodeLog",
    "SeenKey",
    "SignedSpan",
]

# --- node keys ------------------------------------------------------------------------------------

# The keys of nodes as their facts name them, and which of them count.
#
# A key counts if the root key or an operator's credential vouches for it, in this or an earlier
# message. Without any voucher in the realm it counts from its first sight on, and is then the only
# one of its name.


class SeenKey(msgspec.Struct, frozen=True, kw_only=True):
    """The key of nodes."""

    public_key: str
    sequence: int
    """Of the message that named it first."""
    nodes: tuple[str, ...]
    vouched: bool
    """Whether anything vouches for it; else it is taken at first sight."""
    vouched_by: str = ""
    """``the root key``, or ``operator`` and the credential's name."""


class KeyRefusal(NamedTuple):
    """A message with a key that does not count."""

    sequence: int
    node: str
    reason: str


class NodeKeys:
    """The keys that count, and those that do not. A voucher for a key also excuses the messages
    that named it before."""

    def __init__(self, roots: TrustRoots) -> None:
        self._roots = roots
        self._seen: dict[str, SeenKey] = {}
        self._of_nodes: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self._refusals: dict[str, list[KeyRefusal]] = {}

    @property
    def seen(self) -> list[SeenKey]:
        """The keys that count, in the order of their first sight."""
        return list(self._seen.values())

    def key_of(self, node: str) -> str:
        """The key that counts for a node; empty if it has none."""
        return self._of_nodes.get(node, "")

    @property
    def refusals(self) -> list[KeyRefusal]:
        return [refusal for of_key in self._refusals.values() for refusal in of_key]

    def refused_key_of(self, node: str) -> str:
        """The key that a node named last, if that does not count."""
        return self._refused.get(node, "")

    def add(self, sequence: int, fact: Started) -> None:
        """Learn from a node that started."""
        if not fact.public_key:
            return
        known = self._seen.get(fact.public_key)
        voucher = self._roots.voucher_of(fact) or ("" if known is None else known.vouched_by)
        if not voucher and (fault := self._fault(fact, known)):
            self._refused[fact.node] = fact.public_key
            refusal = KeyRefusal(sequence, fact.node, fault)
            self._refusals.setdefault(fact.public_key, []).append(refusal)
            return
        if voucher:
            self._refusals.pop(fact.public_key, None)
        self._refused.pop(fact.node, None)
        self._of_nodes[fact.node] = fact.public_key
        names = dict.fromkeys((*(known.nodes if known else ()), fact.node))
        self._seen[fact.public_key] = SeenKey(
            public_key=fact.public_key,
            sequence=known.sequence if known else sequence,
            nodes=tuple(names),
            vouched=bool(voucher),
            vouched_by=voucher,
        )

    def _fault(self, fact: Started, known: SeenKey | None) -> str:
        """Why a key without a voucher does not count."""
        key, former = key_id_of(fact.public_key), self.key_of(fact.node)
        if former not in ("", fact.public_key):
            fault = f"{fact.node} had the key {key_id_of(former)}, and now has {key}"
        elif known is None and any(one.vouched for one in self._seen.values()):
            fault = f"other nodes' keys have vouchers, and {key} of {fact.node} has none"
        else:
            return ""
        if fact.voucher is not UNSET and fact.voucher.operator is not UNSET:
            name = fact.voucher.operator.name
            if not self._roots.issuer:
                cure = "set server.credentials_file, or give --anchor FILE"
                return f"{fault}; to check the voucher of operator {name}, {cure}"
            return f"{fault}; the realm's issuer has not certified the operator {name}"
        cure = "type `rookery nodes vouch` on its machine and start it again"
        return f"{fault}; if the node is yours, {cure}"


# --- node log -------------------------------------------------------------------------------------

# What the messages of one node are until a checkpoint covers them: sequence, entity and digest.
#
# Flat arrays, 44 bytes a message, because a minute of a busy node is a million messages.


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
