"""What a run was given, in the order it was given: enough to run it again to the same bytes.

A log holds everything that entered the guest from outside and nothing that came out of it. Digests
of what the program asked make a replay stop where the program would ask something else.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from rookery.actors.sandbox.contract import StartStep, Tool, ToolResult
from rookery.actors.sandbox.runtime.introspection import ToolDescriptions, callable_names
from rookery.schemas.calls import ToolFault
from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import Refused
from rookery.schemas.run import RunRequest, SessionLimits

__all__ = ["LogEntry", "RecordedResult", "ResumeEntry", "ResumedCall", "RunLog", "SyncCallEntry"]

_NS_PER_MS = 1_000_000


class RecordedResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """An answer as the program is told it, now and in every replay: whoever gave it may go on
    changing the value it holds."""

    value: bytes = b"null"
    """Canonical JSON."""
    error: ToolFault | None = None
    duration_ms: int = 0

    @classmethod
    def of(cls, answer: ToolResult) -> RecordedResult:
        if answer.error is not None:
            return cls(error=answer.error, duration_ms=answer.duration_ms)
        try:
            return cls(canonical_json(answer.value), duration_ms=answer.duration_ms)
        except Refused as refusal:
            failure = ToolFault("SERIALIZE_ERROR", refusal.message)
            return cls(error=failure, duration_ms=answer.duration_ms)


class SyncCallEntry(msgspec.Struct, frozen=True, tag="call"):
    """A synchronous call and its answer."""

    name: str
    digest: str
    told: RecordedResult


class ResumedCall(msgspec.Struct, frozen=True):
    id: int
    name: str
    digest: str
    told: RecordedResult


class ResumeEntry(msgspec.Struct, frozen=True, tag="resume"):
    """Answers to awaited calls, in their order of arrival, after the program's time went on."""

    calls: list[ResumedCall]
    advance_ms: int = 0
    whole: bool = False
    """By its record no other call was open."""


LogEntry = SyncCallEntry | ResumeEntry


class RunLog(msgspec.Struct):
    """One run, from its start or from the image its session holds of its middle."""

    program: bytes
    limits: SessionLimits
    tools: dict[str, Tool]
    now_ns: int
    entries: list[LogEntry]
    catalogue: ToolDescriptions | None = None
    """What the program was told of its tools, once it asked."""

    @classmethod
    def of(
        cls, request: RunRequest, limits: SessionLimits, tools: dict[str, Tool], now_ms: int
    ) -> RunLog:
        """A run that is about to begin, within these ``limits``."""
        program = StartStep(
            code=request.code,
            inputs=request.inputs,
            tools=callable_names(tools),
            depth=limits.max_stack_depth,
        )
        return cls(msgspec.json.encode(program), limits, tools, now_ms * _NS_PER_MS, [])

    @property
    def size_bytes(self) -> int:
        """What remembering this run costs, roughly."""
        told = sum(len(told.value) for entry in self.entries for told in _results(entry))
        return len(self.program) + told

    @property
    def waited_ms(self) -> int:
        """How long its calls took, by what was recorded of them."""
        return sum(map(_waited_ms, self.entries))

    def ended(self) -> RunLog:
        """Nothing is described any more after a run's end: a replay tells what was told."""
        tools = {name: replace(tool, capability=None) for name, tool in self.tools.items()}
        return replace(self, tools=tools)


def _results(entry: LogEntry) -> list[RecordedResult]:
    return [call.told for call in entry.calls] if isinstance(entry, ResumeEntry) else [entry.told]


def _waited_ms(entry: LogEntry) -> int:
    """Who says how far the program's time went on says how long it was."""
    if isinstance(entry, ResumeEntry) and entry.advance_ms:
        return entry.advance_ms
    return max((told.duration_ms for told in _results(entry)), default=0)
