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

__all__ = ["FactRecorded", "NodeDecider", "NodeState", "RecordFact"]


class RecordFact(msgspec.Struct, frozen=True):
    """Put this fact on record. Only the kernel asks for it."""

    fact: Fact


class FactRecorded(msgspec.Struct, frozen=True):
    """The fact is on record."""


class NodeState(msgspec.Struct, frozen=True):
    """Nothing is decided by what a node has put on record."""


class NodeDecider:
    """Every node writes its own entity."""

    family = "node"
    schema = 1
    verbs: Mapping[str, type[msgspec.Struct]] = MappingProxyType({})
    codec: FactCodec[Any] = FactCodec(NODE_FACTS)
    reacts_to: frozenset[str] = frozenset()
    observes: frozenset[str] = frozenset()
    has_effects = False
    handles_duplicates = False
    stores_large_bodies = False

    def check_key(self, key: str) -> None:
        del key

    def initial(self, key: str) -> NodeState:
        del key
        return NodeState()

    def decide(
        self, state: NodeState, command: Command[RecordFact], *, now_ms: int
    ) -> Sequence[Fact]:
        del state, now_ms
        return [command.body.fact]

    def evolve(self, state: NodeState, fact: Fact) -> NodeState:
        del fact
        return state

    def observe(self, state: NodeState, fact: Fact) -> NodeState:
        del fact
        return state

    def reply(
        self, state: NodeState, command: Command[RecordFact], facts: Sequence[Fact]
    ) -> FactRecorded:
        del state, command, facts
        return FactRecorded()

    def must_be_fenced(self, facts: Sequence[Fact]) -> bool:
        del facts
        return False

    def effects(self, state: NodeState, fact: Fact) -> Sequence[Effect]:
        del state, fact
        return ()

    def on_state(self, key: str, state: NodeState | None) -> None:
        del key, state

    def dump(self, state: NodeState) -> bytes:
        return msgspec.msgpack.encode(state)

    def load(self, data: bytes) -> NodeState:
        return msgspec.msgpack.decode(data, type=NodeState)
