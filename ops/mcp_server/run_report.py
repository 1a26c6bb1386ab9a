"""The state of a run as MCP clients get it: bounded, and whole by reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import UNSET, UnsetType

from rookery.schemas.approvals.lists import ListedApproval
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CODES, CodedError
from rookery.schemas.replies import RunAnswer, RunState, RunView, RunWait
from rookery.schemas.run import CallStatus, ErrorObject, ResultKind, RunStatus, Severity

__all__ = [
    "PATIENCE_S",
    "ErrorReport",
    "RunReport",
    "ValidationReport",
    "WaitReport",
    "error_report",
    "resource_uri",
    "run_report",
    "unended_report",
    "validation_report",
    "wait_report",
]

RESULT_BYTES_MAX: Final = 48 << 10
"""Of a result's JSON in an answer; a longer one is read as a resource."""
STREAM_CHARS_MAX: Final = 16_000
"""Of a stream in an answer, from its end."""
PREVIEW_CHARS: Final = 2_000
PATIENCE_S: Final = 10.0
"""How long a request waits for a node that is away: less than MCP clients do."""
TEXT_CHARS_MAX: Final = 4_000
"""Of an error's message."""
CALLS_MAX: Final = 50
WARNINGS_MAX: Final = 10
_LATER: Final = "runs_result with this run_id has the end"


class ErrorReport(msgspec.Struct, frozen=True, kw_only=True):
    """A coded error, of Rookery or of the program."""

    code: str
    message: str
    hint: str | UnsetType = UNSET
    retryable: bool | UnsetType = UNSET
    """Whether the same call may succeed later without a change."""
    line: int | UnsetType = UNSET


class CallReport(msgspec.Struct, frozen=True, kw_only=True):
    """A call that the program made."""

    tool: str
    status: CallStatus
    duration_ms: int


class ArtifactSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A file that the run wrote to /work/out."""

    path: str
    mime: str
    size_bytes: int
    uri: str


class ApprovalReport(msgspec.Struct, frozen=True, kw_only=True):
    """An approval that a parked run waits for."""

    approval_id: str
    tool: str
    summary: str
    due_ms: int
    command: str


class WaitReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run waits for, who can end the wait, and the command to type for it."""

    what: str
    who: str
    command: str
    until_ms: int | UnsetType = UNSET
    approvals: tuple[ApprovalReport, ...] | UnsetType = UNSET


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """A run: its result, or what it waits for."""

    run_id: str
    session: str
    status: RunState
    result: Any = UNSET
    result_kind: ResultKind | UnsetType = UNSET
    result_preview: str | UnsetType = UNSET
    """The beginning of a result that is too long for this answer."""
    stdout: str | UnsetType = UNSET
    stderr: str | UnsetType = UNSET
    error: ErrorReport | UnsetType = UNSET
    warnings: tuple[str, ...] | UnsetType = UNSET
    calls: tuple[CallReport, ...] | UnsetType = UNSET
    artifacts: tuple[ArtifactSummary, ...] | UnsetType = UNSET
    snapshot_id: str | UnsetType = UNSET
    resources: dict[str, str] | UnsetType = UNSET
    """Addresses of what is cut here, to be read whole."""
    waits_for: WaitReport | UnsetType = UNSET
    next: str | UnsetType = UNSET
    """How to get the end of a run that goes on."""


class ValidationReport(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a program could run."""

    status: RunStatus
    error: ErrorReport | UnsetType = UNSET
    warnings: tuple[str, ...] | UnsetType = UNSET


def resource_uri(run_id: str, part: str) -> str:
    """The address of a part of a run: ``result``, ``stdout``, ``stderr`` or ``artifacts/PATH``."""
    return f"rookery://runs/{quote(run_id, safe='')}/{quote(part, safe='/')}"


def error_report(error: CodedError) -> ErrorReport:
    return ErrorReport(
        code=error.code,
        message=_cut(error.message, TEXT_CHARS_MAX),
        hint=error.hint or UNSET,
        retryable=CODES[error.code].retryable or UNSET,
    )


def run_report(answer: RunAnswer) -> RunReport:
    """The report of a run that has ended."""
    uris: dict[str, str] = {}

    def stream(name: str, text: str) -> str | UnsetType:
        if len(text) > STREAM_CHARS_MAX:
            uris[name] = resource_uri(answer.run_id, name)
            return (
                f"[{len(text) - STREAM_CHARS_MAX:,} characters before]\n"
                + (text[-STREAM_CHARS_MAX:])
            )
        return text or UNSET

    result: Any = answer.result if answer.error is None else UNSET
    preview: str | UnsetType = UNSET
    encoded = encode_json(answer.result)
    if len(encoded) > RESULT_BYTES_MAX:
        uris["result"] = resource_uri(answer.run_id, "result")
        result, preview = UNSET, encoded[:PREVIEW_CHARS].decode("utf-8", "replace")
    return RunReport(
        run_id=answer.run_id,
        session=answer.session_id,
        status=RunState(answer.status),
        result=result,
        result_preview=preview,
        result_kind=answer.result_kind,
        stdout=stream("stdout", answer.stdout),
        stderr=stream("stderr", answer.stderr),
        error=UNSET if answer.error is None else _program_error(answer.error),
        warnings=_warnings(answer),
        calls=_calls(answer),
        artifacts=_artifacts(answer),
        snapshot_id=answer.snapshot_id or UNSET,
        resources=uris or UNSET,
    )


def validation_report(answer: RunAnswer) -> ValidationReport:
    return ValidationReport(
        status=answer.status,
        error=UNSET if answer.error is None else _program_error(answer.error),
        warnings=_warnings(answer),
    )


def unended_report(view: RunView, waits_for: WaitReport | UnsetType) -> RunReport:
    """The report of a run that goes on or waits."""
    return RunReport(
        run_id=view.run_id,
        session=view.session_id,
        status=view.status,
        waits_for=waits_for,
        next=_LATER,
    )


def wait_report(wait: RunWait, approvals: Sequence[ListedApproval]) -> WaitReport:
    """What a run waits for; ``approvals``: those that are open."""
    return WaitReport(
        what=wait.what,
        who=wait.who,
        command=wait.command,
        until_ms=UNSET if wait.until_ms is None else wait.until_ms,
        approvals=tuple(
            ApprovalReport(
                approval_id=one.approval_id,
                tool=one.tool,
                summary=_cut(one.summary, TEXT_CHARS_MAX),
                due_ms=one.due_ms,
                command=f"rookery approvals approve {one.approval_id}",
            )
            for one in approvals
        )
        or UNSET,
    )


def _program_error(error: ErrorObject) -> ErrorReport:
    return ErrorReport(
        code=error.code,
        message=_cut(error.message, TEXT_CHARS_MAX),
        hint=error.hint or UNSET,
        line=UNSET if error.span is None else error.span.line,
    )


def _warnings(answer: RunAnswer) -> tuple[str, ...] | UnsetType:
    found = [
        f"{one.code}: {_cut(one.message, TEXT_CHARS_MAX)}"
        for one in answer.diagnostics
        if one.severity is not Severity.ERROR
    ]
    if answer.artifacts_cut is True:
        found.append("artifacts are left out: they are too many or too large")
    return tuple(found[:WARNINGS_MAX]) or UNSET


def _calls(answer: RunAnswer) -> tuple[CallReport, ...] | UnsetType:
    reports = (
        CallReport(tool=call.name, status=call.status, duration_ms=call.duration_ms)
        for call in answer.external_calls[:CALLS_MAX]
    )
    return tuple(reports) or UNSET


def _artifacts(answer: RunAnswer) -> tuple[ArtifactSummary, ...] | UnsetType:
    reports = (
        ArtifactSummary(
            path=one.artifact_ref,
            mime=one.mime,
            size_bytes=one.size_bytes,
            uri=resource_uri(answer.run_id, f"artifacts/{one.artifact_ref.lstrip('/')}"),
        )
        for one in answer.artifacts or ()
    )
    return tuple(reports) or UNSET


def _cut(text: str, chars: int) -> str:
    return text if len(text) <= chars else f"{text[: chars - 3]}..."
