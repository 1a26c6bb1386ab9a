"""What a run was given, in the order it was given: enough to run it again to the same bytes.

A log holds everything that entered the guest from outside and nothing that came out of it. Digests
of what the program asked make a replay stop where the program would ask something else.
"""

from __future__ import annotations

import msgspec

from rookery.actors.sandbox.contract import Answer, Tool
from rookery.schemas.run import SessionLimits

__all__ = ["Answered", "Entry", "Resumed", "ResumedCall", "RunLog"]


class Answered(msgspec.Struct, frozen=True, tag="call"):
    """A synchronous call and its answer."""

    name: str
    digest: str
    answer: Answer


class ResumedCall(msgspec.Struct, frozen=True):
    id: int
    digest: str
    answer: Answer


class Resumed(msgspec.Struct, frozen=True, tag="resume"):
    """Answers to awaited calls, in their order of arrival, after the program's time went on."""

    calls: list[ResumedCall]
    advance_ms: int = 0


Entry = Answered | Resumed


class RunLog(msgspec.Struct):
    """One run, from its start or from the image its session holds of its middle."""

    program: bytes
    limits: SessionLimits
    tools: dict[str, Tool]
    now_ns: int
    entries: list[Entry]
