"""The inputs of a run, in their order: repeated with them, a run produces the same bytes.

A log holds everything that enters the guest, and of its calls only digests: a replay stops where a
call differs from the recorded one.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET
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
    """A result of a call as the program receives it, now and in every replay. It is encoded, so
    the caller may change the value later."""

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
    """A synchronous call and its result."""

    name: str
    digest: str
    told: RecordedResult


class ResumedCall(msgspec.Struct, frozen=True):
    id: int
    name: str
    digest: str
    told: RecordedResult


class ResumeEntry(msgspec.Struct, frozen=True, tag="resume"):
    """Results of awaited calls in the order of arrival, after the clock was advanced."""

    calls: list[ResumedCall]
    advance_ms: int = 0
    whole: bool = False
    """Whether no other call was open, according to the record."""


LogEntry = SyncCallEntry | ResumeEntry


class RunLog(msgspec.Struct):
    """The log of a run, from its start or from the image of a suspended run."""

    program: bytes
    limits: SessionLimits
    tools: dict[str, Tool]
    now_ns: int
    entries: list[LogEntry]
    catalogue: ToolDescriptions | None = None
    """The descriptions of tools, if the program used them."""
    files: dict[str, bytes | None] = {}
    """Files that are written before the program begins, and (``None``) removed."""

    @classmethod
    def of(
        cls, request: RunRequest, limits: SessionLimits, tools: dict[str, Tool], now_ms: int
    ) -> RunLog:
        """The log of a new run."""
        program = StartStep(
            code=request.code,
            inputs=request.inputs,
            tools=callable_names(tools),
            depth=limits.max_stack_depth,
        )
        return cls(
            msgspec.json.encode(program),
            limits,
            tools,
            now_ms * _NS_PER_MS,
            [],
            files=_contents(request),
        )

    @property
    def size_bytes(self) -> int:
        """The approximate memory of the log."""
        results_bytes = sum(
            len(result.value) for entry in self.entries for result in _results(entry)
        )
        files_bytes = sum(len(data or b"") for data in self.files.values())
        return len(self.program) + files_bytes + results_bytes

    @property
    def waited_ms(self) -> int:
        """The recorded time of all calls."""
        return sum(map(_waited_ms, self.entries))

    def ended(self) -> RunLog:
        """The log without descriptions of tools, which only ``catalogue`` needs after the end."""
        tools = {name: replace(tool, capability=None) for name, tool in self.tools.items()}
        return replace(self, tools=tools)


def _contents(request: RunRequest) -> dict[str, bytes | None]:
    """The files of a request whose blobs are fetched."""
    found: dict[str, bytes | None] = {}
    for path, file in (request.files or {}).items():
        assert file is None or file.blob is UNSET, "the caller fetches the blobs"
        found[path] = None if file is None else file.data or (file.text or "").encode()
    return found


def _results(entry: LogEntry) -> list[RecordedResult]:
    return [call.told for call in entry.calls] if isinstance(entry, ResumeEntry) else [entry.told]


def _waited_ms(entry: LogEntry) -> int:
    """The time of one entry: its ``advance_ms``, else its longest call."""
    if isinstance(entry, ResumeEntry) and entry.advance_ms:
        return entry.advance_ms
    return max((result.duration_ms for result in _results(entry)), default=0)
