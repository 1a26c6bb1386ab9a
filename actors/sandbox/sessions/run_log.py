"""The log of a run: its inputs in their order, also as the journal recorded them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from rookery.actors.sandbox.contract import StartStep, Tool, ToolResult, ToolTable
from rookery.actors.sandbox.runtime.introspection import SEARCH, ToolDescriptions, has_search
from rookery.actors.sandbox.runtime.mentions import Mentions, is_by_mention, names_for
from rookery.actors.sandbox.validate import limits_in_force, tools_by_name
from rookery.schemas.calls import ToolFault
from rookery.schemas.digest import canonical_json
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.run import Language, RunRequest, SessionLimits

__all__ = [
    "LogEntry",
    "RecordedCall",
    "RecordedResult",
    "RecordedRun",
    "ResultBatch",
    "ResumeEntry",
    "ResumedCall",
    "RunLog",
    "SyncCallEntry",
    "mentions_after",
    "to_entries",
    "to_logs",
]

# --- run log --------------------------------------------------------------------------------------

# The inputs of a run, in their order: repeated with them, a run produces the same bytes.
#
# A log holds everything that enters the guest, and of its calls only digests: a replay stops where
# a call differs from the recorded one.


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
    by_mention: bool | UnsetType = UNSET
    """Whether the guest got only the names of tools that a program of its session had mentioned."""

    @classmethod
    def of(
        cls,
        request: RunRequest,
        limits: SessionLimits,
        tools: dict[str, Tool],
        now_ms: int,
        mentions: Mentions,
    ) -> RunLog:
        """The log of a new run. ``mentions``: of its session, with this run's."""
        program = StartStep(
            code=request.code,
            inputs=request.inputs,
            tools=names_for(tools, mentions),
            depth=limits.max_stack_depth,
        )
        return cls(
            msgspec.json.encode(program),
            limits,
            tools,
            now_ms * _NS_PER_MS,
            [],
            files=_contents(request),
            by_mention=is_by_mention(tools) or UNSET,
        )

    @property
    def has_search(self) -> bool:
        """Whether its program has the function ``SEARCH``."""
        if self.by_mention is True:  # Not all tools are here after the end.
            return SEARCH.name not in self.tools
        return has_search(self.tools)

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
        tools = self.waiting().tools
        bare = {name: replace(tool, capability=None) for name, tool in tools.items()}
        return replace(self, tools=bare)

    def waiting(self) -> RunLog:
        """The log without tools that its program cannot call: there may be thousands of them, and
        the run gets them again when it resumes."""
        if self.by_mention is not True:
            return self
        names = _decode_program(self.program).tools
        return replace(self, tools={n: tool for n, tool in self.tools.items() if n in names})

    def resumed(self, offered: Mapping[str, Tool]) -> RunLog:
        """The inverse of ``waiting``, with the tools of its run."""
        if self.by_mention is not True:
            return self
        return replace(self, tools=ToolTable({**offered, **self.tools}))


class _Program(msgspec.Struct):
    """What is read again of a ``StartStep``."""

    code: str
    tools: dict[str, bool]


_decode_program = msgspec.json.Decoder(_Program).decode


def mentions_after(
    mentions: Mentions | None, logs: Iterable[RunLog], language: Language
) -> Mentions | None:
    """What a session has mentioned after these runs; ``None`` if all its runs got all names."""
    for log in logs:
        if log.by_mention is True:
            code = _decode_program(log.program).code
            mentions = (mentions or Mentions()).after(code, language)
    return mentions


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


# --- recorded runs --------------------------------------------------------------------------------

# Converts runs as the journal records them into the logs that rebuild a session.
#
# A record holds all inputs of a program: its request, its tools, the results of its calls, and the
# time that passed while it waited for a timer. Randomness, sleeping and the grouping of calls
# follow from the program and its guest build. This module checks the form of a record; the replay
# checks that the program makes the recorded calls.


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call and its result."""

    number: int
    """The call's ``id``."""
    name: str
    digest: str
    awaited: bool
    answer: ToolResult


class ResultBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one ``resume``: of one synchronous call, or of awaited calls in the order of
    their numbers, which is the order of their results."""

    calls: tuple[RecordedCall, ...] = ()
    """Empty if a timer of the program fired first."""
    passed_ms: tuple[int, ...] = ()
    """Each ``advance_ms`` of ``resume``: first those without results, then the one with these."""
    whole: bool = True
    """Whether no other call was open."""


class RecordedRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run that ended and left its effects on the session."""

    request: RunRequest
    limits: SessionLimits
    """The limits of its session at that time."""
    tools: tuple[Tool, ...]
    """The tools of the run, with their descriptions."""
    now_ms: int
    batches: tuple[ResultBatch, ...] = ()


def to_logs(
    runs: Iterable[RecordedRun], language: Language, mentions: Mentions | None
) -> list[RunLog]:
    """The logs of these runs; runs with the same tools share the descriptions. ``mentions``: of the
    session before."""
    history: list[RunLog] = []
    for run in runs:
        tools, limits = tools_by_name(run.tools), limits_in_force(run.request, run.limits)
        own = (mentions or Mentions()).after(run.request.code, language)
        log = RunLog.of(run.request, limits, tools, run.now_ms, own)
        log.entries, log.catalogue = to_entries(run.batches), ToolDescriptions.shared(tools)
        mentions = own if log.by_mention is True else mentions
        history.append(log)
    return history


def to_entries(batches: Iterable[ResultBatch]) -> list[LogEntry]:
    """The log entries of these batches. The numbers of calls have no gaps, unless the program
    continued without some of its calls."""
    entries: list[LogEntry] = []
    known: set[int] = set()
    gaps = False
    for batch in batches:
        gaps |= not batch.whole
        numbers = [call.number for call in batch.calls]
        expected = list(range(len(known) + 1, len(known) + len(numbers) + 1))
        if (numbers != expected and not gaps) or not known.isdisjoint(numbers):
            last = max(known, default=0)
            raise Failed("REPLAY_DIVERGED", f"after call {last} the record has calls {numbers}")
        *waited, last = batch.passed_ms or (0,)
        entries += [ResumeEntry([], advance_ms) for advance_ms in waited]
        entries.append(_to_entry(batch, last))
        known.update(numbers)
    return entries


def _to_entry(batch: ResultBatch, advance_ms: int) -> LogEntry:
    calls = batch.calls
    results = [RecordedResult.of(call.answer) for call in calls]
    if all(call.awaited for call in calls):
        fed = [
            ResumedCall(c.number, c.name, c.digest, t) for c, t in zip(calls, results, strict=True)
        ]
        return ResumeEntry(fed, advance_ms, whole=batch.whole)
    if len(calls) > 1:
        numbers = [call.number for call in calls]
        raise Failed("REPLAY_DIVERGED", f"calls {numbers} are in one batch: one is synchronous")
    return SyncCallEntry(calls[0].name, calls[0].digest, results[0])
