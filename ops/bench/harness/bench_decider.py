"""The benches' own family: a turn that advances step by step, with the smallest possible decider.

A command of about 160 bytes leaves one fact of about 300 bytes, the usual sizes of a session. Nodes
do not host this decider.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from rookery.actors.kernel.decider import Effect
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_session_id

__all__ = ["COMMAND", "FAMILY", "VERB", "Advance", "Advanced", "BenchDecider", "BenchState"]

FAMILY = "bench"
VERB = "advance"
COMMAND = (
    b'{"tool":"files_read","arguments":{"path":"reports/2026/november.md","encoding":"utf-8",'
    b'"from_line":120,"to_line":180},"call_id":"call-0017","timeout_ms":2000}'
)
_TOOL_CHARACTERS_MAX = 64


class Advance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Take the next step, with this call."""

    tool: str
    arguments: dict[str, Any]
    call_id: str
    timeout_ms: int = 10_000


class Advanced(Fact, frozen=True, kw_only=True, tag="bench.advanced.v1"):
    """The turn has taken this step."""

    step: int
    tool: str
    call_id: str


class BenchState(msgspec.Struct, frozen=True):
    """A turn; also the reply."""

    step: int = 0


class BenchDecider:
    """Decides for turns; every key is a turn."""

    family = FAMILY
    schema = 1
    verbs: Mapping[str, type[msgspec.Struct]] = MappingProxyType({VERB: Advance})
    codec: FactCodec[Any] = FactCodec(Advanced)
    reacts_to: frozenset[str] = frozenset()
    observes: frozenset[str] = frozenset()
    has_effects = False
    handles_duplicates = False
    stores_large_bodies = False

    def check_key(self, key: str) -> None:
        check_session_id(key)

    def initial(self, key: str) -> BenchState:
        del key
        return BenchState()

    def decide(
        self, state: BenchState, command: Command[Advance], *, now_ms: int
    ) -> Sequence[Advanced]:
        del now_ms
        call = command.body
        if len(call.tool) > _TOOL_CHARACTERS_MAX:
            raise Refused("INVALID_ARGUMENT", f"the tool's name has {len(call.tool)} characters")
        return [Advanced(step=state.step + 1, tool=call.tool, call_id=call.call_id)]

    def evolve(self, state: BenchState, fact: Advanced) -> BenchState:
        del state
        return BenchState(fact.step)

    def observe(self, state: BenchState, fact: Fact) -> BenchState:
        del fact
        return state

    def reply(
        self, state: BenchState, command: Command[Advance], facts: Sequence[Fact]
    ) -> BenchState:
        del command, facts
        return state

    def must_be_fenced(self, facts: Sequence[Fact]) -> bool:
        del facts
        return False

    def effects(self, state: BenchState, fact: Fact) -> Sequence[Effect]:
        del state, fact
        return ()

    def on_state(self, key: str, state: BenchState | None) -> None:
        del key, state

    def dump(self, state: BenchState) -> bytes:
        return msgspec.msgpack.encode(state)

    def load(self, data: bytes) -> BenchState:
        return msgspec.msgpack.decode(data, type=BenchState)
