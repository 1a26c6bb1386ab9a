"""The family ``node``: the kernel's own facts, under the key of its node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rookery.actors.kernel.decider import Decider
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.facts.node import NODE_FACTS

__all__ = ["FactRecorded", "NodeDecider", "NodeState", "RecordFact"]


class RecordFact(msgspec.Struct, frozen=True):
    """Commit this fact; only the kernel sends this command."""

    fact: Fact


class FactRecorded(msgspec.Struct, frozen=True):
    """The fact is committed."""


class NodeState(msgspec.Struct, frozen=True):
    """Empty: no decision depends on a node's facts."""


class NodeDecider(Decider):
    """The rules of the family ``node``: every node writes its own entity."""

    family = "node"
    codec: FactCodec[Any] = FactCodec(NODE_FACTS)
    initial_state = NodeState()

    def check_key(self, key: str) -> None:
        """Accept any key: the kernel sends its own node's name."""

    def decide(
        self, state: NodeState, command: Command[RecordFact], *, now_ms: int
    ) -> Sequence[Fact]:
        del state, now_ms
        return [command.body.fact]

    def evolve(self, state: NodeState, fact: Fact) -> NodeState:
        del fact
        return state

    def reply(
        self, state: NodeState, command: Command[RecordFact], facts: Sequence[Fact]
    ) -> FactRecorded:
        del state, command, facts
        return FactRecorded()
