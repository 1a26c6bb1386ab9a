"""The family ``node``: what the kernel itself puts on record, under the key of its node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from rookery.actors.kernel.decider import Effect
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.facts.node import NODE_FACTS

__all__ = ["NodeRecord", "NodesConcern", "Record", "Recorded"]


class Record(msgspec.Struct, frozen=True):
    """Put this fact on record. Only the kernel asks for it."""

    fact: Fact


class Recorded(msgspec.Struct, frozen=True):
    """The fact is on record."""


class NodeRecord(msgspec.Struct, frozen=True):
    """Nothing is decided by what a node has put on record."""


class NodesConcern:
    """Every node writes its own entity."""

    family = "node"
    schema = 1
    verbs: Mapping[str, type[msgspec.Struct]] = MappingProxyType({})
    codec: FactCodec[Any] = FactCodec(NODE_FACTS)
    reacts_to: frozenset[str] = frozenset()
    observes: frozenset[str] = frozenset()
    has_effects = False
    wants_repeats = False
    keeps_bodies = False

    def check_key(self, key: str) -> None:
        del key

    def initial(self, key: str) -> NodeRecord:
        del key
        return NodeRecord()

    def decide(self, state: NodeRecord, command: Command[Record], *, now_ms: int) -> Sequence[Fact]:
        del state, now_ms
        return [command.body.fact]

    def evolve(self, state: NodeRecord, fact: Fact) -> NodeRecord:
        del fact
        return state

    def observe(self, state: NodeRecord, fact: Fact) -> NodeRecord:
        del fact
        return state

    def answer(
        self, state: NodeRecord, command: Command[Record], facts: Sequence[Fact]
    ) -> Recorded:
        del state, command, facts
        return Recorded()

    def fenced(self, facts: Sequence[Fact]) -> bool:
        del facts
        return False

    def effects(self, state: NodeRecord, fact: Fact) -> Sequence[Effect]:
        del state, fact
        return ()

    def note(self, key: str, state: NodeRecord | None) -> None:
        del key, state

    def dump(self, state: NodeRecord) -> bytes:
        return msgspec.msgpack.encode(state)

    def load(self, data: bytes) -> NodeRecord:
        return msgspec.msgpack.decode(data, type=NodeRecord)
