"""Builds the ``RunResult`` of a run from its last step and its meters."""

from __future__ import annotations

from msgspec import UNSET

from rookery.actors.sandbox.contract import StepEnded, status_of
from rookery.actors.sandbox.sessions.meters import RunMeters, Stopwatch
from rookery.schemas.errors import Refused
from rookery.schemas.run import (
    Diagnostic,
    ErrorObject,
    Metrics,
    RunResult,
    RunStatus,
    SessionLimits,
    Severity,
)

__all__ = ["refused_result", "result_of"]

_HINTS = {
    "SYNTAX_ERROR": "the parser failed there; the mistake may be before it",
    "TOOL_ERROR": "describe_tool(NAME) shows what a tool takes; a program can catch its errors",
    "TIMEOUT_WALL": "ask for less at a time, or raise wall_ms",
    "TIMEOUT_CPU": "compute less at a time, or raise cpu_ms",
    "MEMORY_EXCEEDED": "hold less at a time, or raise memory_mb",
    "STACK_OVERFLOW": "use a loop instead of recursion, or raise max_stack_depth",
    "EXTERNAL_CALLS_EXCEEDED": "make fewer calls, or raise max_external_calls",
}


def refused_result(refusal: Refused) -> RunResult:
    """The result of a request that was refused before its run began."""
    error = ErrorObject(code=refusal.code, message=refusal.message, hint=refusal.hint or None)
    return RunResult(
        status=RunStatus.VALIDATION_ERROR, error=error, diagnostics=(Diagnostic.error(error),)
    )


def result_of(
    ended: StepEnded, tally: RunMeters, stopwatch: Stopwatch, limits: SessionLimits
) -> RunResult:
    error, diagnostics = ended.error, []
    if error is not None:
        hint = error.hint or _HINTS.get(error.code)
        error = ErrorObject(code=error.code, message=error.message, hint=hint, span=error.span)
        diagnostics.append(Diagnostic.error(error))
    output = tally.output
    if output.cut:
        text = f"the output was cut after {limits.max_stdout_bytes} bytes a stream"
        diagnostics.append(
            Diagnostic(severity=Severity.WARNING, code="STDOUT_EXCEEDED", message=text)
        )
    return RunResult(
        status=RunStatus.OK if error is None else status_of(error.code),
        result=None if error else ended.value,
        stdout=output.stdout,
        stderr=output.stderr,
        diagnostics=tuple(diagnostics),
        external_calls=tuple(tally.records),
        metrics=Metrics(
            duration_ms=stopwatch.wall_ms,
            memory_peak_bytes=tally.memory_bytes,
            instructions=tally.fuel,
            external_calls_count=tally.calls_started,
        ),
        error=error,
        result_kind=UNSET if ended.value is None else ended.kind,
        result_cut=ended.cut,
        output_cut=output.cut or UNSET,
    )
