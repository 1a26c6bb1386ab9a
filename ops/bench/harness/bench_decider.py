"""The benches' own family: a turn that advances step by step, with the smallest possible decider.

A command of about 160 bytes leaves one fact of about 300 bytes, the usual sizes of a session. Nodes
do not host this decider.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import msgspec

from rookery.actors.kernel import Decider
from rookery.schemas.codec import FactCodec
from rookery.schemas.envelope import Command, Fact
from rookery.schemas.errors import Refused

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


class BenchDecider(Decider):
    """Decides for turns; every key is a turn."""

    family = FAMILY
    verbs: Mapping[str, type[msgspec.Struct]] = MappingProxyType({VERB: Advance})
    codec: FactCodec[Any] = FactCodec(Advanced)
    initial_state = BenchState()

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
