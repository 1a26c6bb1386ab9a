"""Runs: the request and the result, a session's limits and record, and the check of limits."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict

from rookery.schemas.agents import (
    AnswerDeltas,
    Compaction,
    ImmediateMessage,
    ModelSettings,
    ModelUsage,
    ParentRun,
    PromptPart,
    ToolMode,
)
from rookery.schemas.codec import range_of
from rookery.schemas.errors import Refused
from rookery.schemas.protection.rights import Rights, SideEffect
from rookery.schemas.seed.content import ContentRef
from rookery.schemas.seed.lifecycle import ProviderStopReason

__all__ = [
    "SNAPSHOT_BYTES_MAX",
    "SNAPSHOT_VERSION",
    "CallStatus",
    "Diagnostic",
    "ErrorObject",
    "ExternalCallRecord",
    "FileInput",
    "Language",
    "Metrics",
    "OutputMessage",
    "OutputPiece",
    "OutputStream",
    "ResultKind",
    "RunLimits",
    "RunOutput",
    "RunRequest",
    "RunResult",
    "RunStatus",
    "SessionLimits",
    "SessionMeta",
    "Severity",
    "SideEffect",
    "Span",
    "check_limits",
    "check_run_limits",
    "limit_hint",
    "unset_if_default",
]

# --- run ------------------------------------------------------------------------------------------

# Seed 000: a run's request and result, a session's limits and record. Names are the contract.
#
# On output every field is written; on input missing fields take the defaults. A command refuses
# unknown fields (``codec``), a fact that holds the same struct ignores them.


SNAPSHOT_VERSION = 1
SNAPSHOT_BYTES_MAX = 1280 << 20
"""Twice a session's default maximum of memory, because a session with a waiting run is stored both
as before that run and as it is; the rest is for the outcomes of its calls."""


class Language(StrEnum):
    PYTHON = "python"
    TYPESCRIPT = "typescript"

    @classmethod
    def _missing_(cls, value: object) -> Language | None:
        """The usual words for TypeScript are all accepted; one of them is written."""
        return cls.TYPESCRIPT if value in ("ts", "type_script", "TypeScript") else None


class RunStatus(StrEnum):
    OK = "ok"
    VALIDATION_ERROR = "validation_error"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    RESOURCE_EXHAUSTED = "resource_exhausted"
    PERMISSION_DENIED = "permission_denied"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    INTERRUPTED = "interrupted"


class ResultKind(StrEnum):
    """How a value became the JSON of ``RunResult.result``."""

    JSON = "json"
    """The value is plain JSON."""
    CONVERTED = "converted"
    """The value has an evident form in JSON: a tuple, a set, a date, a dataclass ..."""
    REPR = "repr"
    """The value, or a part of it, is the text that its language prints for it."""


class Severity(StrEnum):
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


class CallStatus(StrEnum):
    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"
    DENIED = "denied"
    APPROVAL_PENDING = "approval_pending"


U16_MAX, U32_MAX = (1 << 16) - 1, (1 << 32) - 1


def _documented_range(least: int, most: int) -> Meta:
    """A range for schemas and hints, validated by ``limits``. Decoding accepts any value, because a
    stored fact must stay readable."""
    return Meta(extra_json_schema={"minimum": least, "maximum": most})


PositiveLimit = Annotated[int, _documented_range(1, U32_MAX)]
NonNegativeLimit = Annotated[int, _documented_range(0, U32_MAX)]
StackDepth = Annotated[int, _documented_range(1, U16_MAX)]


class SessionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The resources one run may use."""

    memory_mb: PositiveLimit = 64
    cpu_ms: PositiveLimit = 2_000
    wall_ms: PositiveLimit = 5_000
    max_stdout_bytes: NonNegativeLimit = 65_536
    max_external_calls: NonNegativeLimit = 32
    max_stack_depth: StackDepth = 256


class RunLimits(SessionLimits, frozen=True, kw_only=True):
    """The limits of one run; those that a session has not are of runs with a prompt."""

    turns: PositiveLimit | UnsetType = UNSET
    """Questions to the model, 50."""
    tool_calls: NonNegativeLimit | UnsetType = UNSET
    """Calls that the model makes, 256."""
    agent_wall_ms: PositiveLimit | UnsetType = UNSET
    """Time while the run is not parked, 600,000."""
    tokens: PositiveLimit | UnsetType = UNSET
    """Tokens of questions and answers; unlimited."""
    cost_micro_usd: PositiveLimit | UnsetType = UNSET
    """Cost in millionths of a dollar; unlimited."""
    repeats: PositiveLimit | UnsetType = UNSET
    """How often one call of the model may lead to the same outcome, 8."""
    depth: NonNegativeLimit | UnsetType = UNSET
    """How deep the agents that the run calls may call others, 4."""
    children: NonNegativeLimit | UnsetType = UNSET
    """How many agents it may call, 32."""


class SessionMeta(msgspec.Struct, frozen=True, kw_only=True):
    """A session's metadata, readable without opening the session."""

    id: str = "default"
    created_at: int = 0
    last_used_at: int = 0
    language: Language = Language.PYTHON
    limits: SessionLimits = SessionLimits()
    snapshot_version: int = SNAPSHOT_VERSION

    def check_language(self, language: Language) -> None:
        """Refuse another language than the open session's: its memory belongs to one language."""
        if language is not self.language:
            raise Refused(
                "UNSUPPORTED_FEATURE",
                f"session {self.id} executes {self.language}",
                hint=f"run {language} in another session",
            )


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A place in a source, 1-based."""

    line: int = 1
    column: int = 1
    end_line: int | None = None
    end_column: int | None = None


class ErrorObject(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    message: str
    hint: str | None = None
    span: Span | None = None


class Diagnostic(msgspec.Struct, frozen=True, kw_only=True):
    severity: Severity = Severity.INFO
    code: str
    message: str
    hint: str | None = None
    span: Span | None = None

    @classmethod
    def error(cls, error: ErrorObject) -> Diagnostic:
        """The diagnostic with the code and message of ``error``."""
        return cls(
            severity=Severity.ERROR,
            code=error.code,
            message=error.message,
            hint=error.hint,
            span=error.span,
        )


class ExternalCallRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One started capability call, with digests instead of arguments."""

    name: str
    side_effect: SideEffect = SideEffect.NONE
    duration_ms: int = 0
    status: CallStatus = CallStatus.OK
    request_digest: str
    response_digest: str | None = None
    error: ErrorObject | None = None


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    duration_ms: int = 0
    memory_peak_bytes: int = 0
    instructions: int = 0
    external_calls_count: int = 0


class OutputStream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


class RunOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """The output of a run so far."""

    stdout: str = ""
    stderr: str = ""
    cut: tuple[OutputStream, ...] = ()
    """The streams that reached the limit of the run, and were cut there."""


class OutputPiece(msgspec.Struct, frozen=True):
    """A part of one stream."""

    stream: OutputStream
    text: str


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive pieces of a run's output. Messages may be lost, and a piece may come again; the
    result has the whole output."""

    session_id: str
    run_id: str
    number: int
    """Of the first piece. The pieces of a run are numbered from 1, in the order of their printing;
    one number is always the same text."""
    pieces: tuple[OutputPiece, ...]
    answer: AnswerDeltas | UnsetType = UNSET
    """Pieces of a model's answer, in the place of output: ``number`` is 0."""


class FileInput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The content of a file: exactly one of the fields."""

    text: str | UnsetType = UNSET
    data: bytes | UnsetType = UNSET
    """Base64 in JSON."""
    blob: str | UnsetType = UNSET
    """Digest of the content in the blob store, where any role that runs programs may store it."""

    @property
    def size_bytes(self) -> int:
        """Of what the request itself has."""
        return len(self.data or b"") + len(self.text or "")


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A program to run, or a prompt. ``session_id`` defaults to the subject's; a different one is
    refused."""

    session_id: str = "default"
    language: Language = Language.PYTHON
    code: str = ""
    inputs: dict[str, Any] = {}
    timeout_ms: PositiveLimit | None = None
    limits: RunLimits | None = None
    return_snapshot: bool = False
    validate_only: bool = False
    rights: Rights | UnsetType = msgspec.field(default=UNSET, name="grants")
    """Not in the seed. What the run may call, beside the rights of its session."""
    files: dict[str, FileInput | None] | UnsetType = UNSET
    """Files of the session that are written before the program begins, all or none, by their paths
    below ``/work``; ``null`` removes a file or an empty folder."""
    inputs_blob: str | UnsetType = UNSET
    """Digest of a JSON object in the blob store with further inputs."""
    prompt: str | tuple[PromptPart, ...] | UnsetType = UNSET
    """What a model is asked, instead of a program: it drives the run with the run's tools."""
    model: str | tuple[str, ...] | UnsetType = UNSET
    """Alias of the model in the node's configuration, or several: each is asked where the one
    before it cannot answer. Unset: the baseline of the session, or ``models.default``."""
    instructions: str | UnsetType = UNSET
    """What the model is to heed throughout the run."""
    settings: ModelSettings | UnsetType = UNSET
    output_schema: Any = UNSET
    """JSON Schema of the result; unset: the result is the last text of the model."""
    tools: tuple[str, ...] | UnsetType = UNSET
    """The tools that the model sees; unset: all that the run may call."""
    tool_mode: ToolMode | UnsetType = UNSET
    """Whether the model acts by calls of tools, by programs that call them, or by both; unset: by
    calls, and by programs if ``tools`` names ``run_code``."""
    immediate: ImmediateMessage | UnsetType = UNSET
    """Set by the verbs ``append`` and ``context``: no model is asked about the prompt."""
    agent: str | UnsetType = UNSET
    """A registered agent, with ``inputs`` as its arguments: it has the instructions, and perhaps
    the model, the tools, limits and the schema of the result, which other fields can only narrow.
    Without a prompt the model is asked about the arguments."""
    parent: ParentRun | UnsetType = UNSET
    """Set by the node of the run that has called the agent."""
    compact: Compaction | UnsetType = UNSET
    """Replaces the older messages of the session's conversation, in the place of a prompt."""

    @property
    def has_prompt(self) -> bool:
        """Whether a model drives the run."""
        return not (self.prompt is self.agent is self.compact is UNSET)

    @property
    def prompt_parts(self) -> tuple[PromptPart, ...]:
        """The prompt."""
        match self.prompt:
            case str() as text:
                return (PromptPart(text=text),)
            case tuple() as parts:
                return parts
        if self.agent is UNSET:
            return ()
        text = (
            msgspec.json.encode(self.inputs, order="sorted").decode() if self.inputs else "Begin."
        )
        return (PromptPart(text=text),)


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    status: RunStatus = RunStatus.OK
    result: Any = None
    stdout: str = ""
    stderr: str = ""
    diagnostics: tuple[Diagnostic, ...] = ()
    external_calls: tuple[ExternalCallRecord, ...] = ()
    snapshot_id: str | None = None
    metrics: Metrics = Metrics()
    error: ErrorObject | None = None
    result_kind: ResultKind | UnsetType = UNSET
    """Absent without a result, and in runs of guests that did not report it."""
    result_cut: bool | UnsetType = UNSET
    """Whether parts of a deep or huge result were cut."""
    output_cut: tuple[OutputStream, ...] | UnsetType = UNSET
    """The streams that reached ``max_stdout_bytes``, and were cut there."""
    artifacts: tuple[ContentRef, ...] | UnsetType = UNSET
    """The files that the run wrote below ``/work/out``; their contents are blobs."""
    artifacts_cut: bool | UnsetType = UNSET
    """Whether some of these files were too many or too large, and are left out."""
    usage: ModelUsage | UnsetType = UNSET
    """Of a run that a model drove."""
    stop_reason: ProviderStopReason | UnsetType = UNSET
    """Why its model stopped last."""

    @classmethod
    def failed(
        cls,
        status: RunStatus,
        error: ErrorObject,
        stdout: str = "",
        metrics: Metrics = Metrics(),  # noqa: B008 - frozen.
    ) -> RunResult:
        """A run that ended with ``error``, which is also its one diagnostic."""
        return cls(
            status=status,
            stdout=stdout,
            diagnostics=(Diagnostic.error(error),),
            metrics=metrics,
            error=error,
        )

    @property
    def output(self) -> RunOutput:
        return RunOutput(self.stdout, self.stderr, self.output_cut or ())

    def with_output(self, output: RunOutput) -> RunResult:
        """This result of a run that printed ``output``."""
        return msgspec.structs.replace(
            self, stdout=output.stdout, stderr=output.stderr, output_cut=output.cut or UNSET
        )


# --- limits ---------------------------------------------------------------------------------------

# Validation of limits at the request endpoint, with the same message for every command.
#
# The fields in ``run`` declare the ranges. A limit above the realm's maximum is in range: it is
# capped when the run starts. Limits in facts are not validated again.


_RANGES: Final = {
    field.name: allowed
    for kind in (RunLimits, RunRequest)
    for field in msgspec.structs.fields(kind)
    if (allowed := range_of(field.type)) is not None
}


def check_limits(limits: SessionLimits) -> SessionLimits:
    """The limits, or ``INVALID_ARGUMENT`` for the first one out of range."""
    for name, value in asdict(limits).items():
        if value is not UNSET:
            _check(name, value)
    return limits


def check_run_limits(request: RunRequest) -> None:
    """Validate the limits of a run's request."""
    if request.limits is not None:
        check_limits(request.limits)
    if request.timeout_ms is not None:
        _check("timeout_ms", request.timeout_ms)


def unset_if_default(limits: SessionLimits) -> SessionLimits | UnsetType:
    """The session's limits as facts store them: unset if they are the defaults."""
    return UNSET if limits == SessionLimits() else limits


def limit_hint(name: str) -> str:
    """The valid range of a limit, in words."""
    return _RANGES[name].hint(name)


def _check(name: str, value: Any) -> None:
    valid = _RANGES[name]
    if type(value) is not int or not valid.least <= value <= valid.most:
        raise Refused("INVALID_ARGUMENT", f"{name} is {value!r}", hint=valid.hint(name))
