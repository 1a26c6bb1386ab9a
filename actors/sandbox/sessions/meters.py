"""Meters of a run: output, call records, time and instructions; and the result they are part of."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from msgspec import UNSET

from rookery.actors.sandbox.contract import ProgramCall, StepEnded, Tool, status_of
from rookery.actors.sandbox.runtime.wasm import GuestStopped
from rookery.actors.sandbox.sessions.run_log import RecordedResult
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import Refused
from rookery.schemas.run import (
    CallStatus,
    Diagnostic,
    ErrorObject,
    ExternalCallRecord,
    Metrics,
    OutputStream,
    RunOutput,
    RunResult,
    RunStatus,
    SessionLimits,
    Severity,
)

__all__ = ["PendingAwait", "RunMeters", "Stopwatch", "call_digest", "refused_result", "result_of"]

# --- meters ---------------------------------------------------------------------------------------

# A replay produces the same ones; it reads the durations from the log.


_canonical = msgspec.json.Encoder(order="deterministic").encode
_STATUSES = {"PERMISSION_DENIED": CallStatus.DENIED, "TIMEOUT_TOOL": CallStatus.TIMEOUT}


class PendingAwait(msgspec.Struct, frozen=True):
    """An open awaited call and the guest's number for it."""

    number: int
    call: ProgramCall


class RunMeters(msgspec.Struct):
    """The meters of a run; copied where the run can be resumed."""

    stdout: bytes = b""
    stderr: bytes = b""
    pieces: int = 0
    """The pieces of the streams so far."""
    cut: tuple[OutputStream, ...] = ()
    """The streams that are full."""
    records: list[ExternalCallRecord] = []
    calls_started: int = 0
    fuel: int = 0
    memory_bytes: int = 0
    open: dict[int, PendingAwait] = {}

    def copy(self) -> RunMeters:
        return msgspec.structs.replace(self, records=list(self.records), open=dict(self.open))

    @property
    def output(self) -> RunOutput:
        stdout, stderr = self.stdout.decode(errors="replace"), self.stderr.decode(errors="replace")
        return RunOutput(stdout, stderr, self.cut)

    def emit(self, stream: OutputStream, text: bytes, size_bytes_max: int) -> bytes:
        """Append what fits, in whole characters, and then nothing more; returns what was
        appended."""
        if stream in self.cut:
            return b""
        written: bytes = getattr(self, stream)
        free_bytes = size_bytes_max - len(written)
        if len(text) > free_bytes:
            text = text[:free_bytes].decode(errors="ignore").encode()
            self.cut += (stream,)
        setattr(self, stream, written + text)
        return text

    def record_result(self, call: ProgramCall, result: RecordedResult, tool: Tool) -> None:
        """Record a call that ended."""
        status, error = CallStatus.OK, None
        if result.error is not None:
            status = _STATUSES.get(result.error.code, CallStatus.ERROR)
            error = ErrorObject(code=result.error.code, message=result.error.message)
        self.records.append(
            ExternalCallRecord(
                name=call.name,
                side_effect=tool.side_effect,
                duration_ms=result.duration_ms,
                status=status,
                request_digest=call.digest,
                response_digest=None if error else digest_bytes(result.value),
                error=error,
            )
        )

    def record_dropped(self, call: ProgramCall, tool: Tool) -> None:
        """Record a call that its program stopped waiting for."""
        text = f"the program went on without {call.name}"
        self.records.append(
            ExternalCallRecord(
                name=call.name,
                side_effect=tool.side_effect,
                status=CallStatus.ERROR,
                request_digest=call.digest,
                error=ErrorObject(code="CANCELLED", message=text),
            )
        )

    def record_timeout(self, call: ProgramCall, tool: Tool) -> None:
        """Record a call that was open when the run's time was over."""
        self.records.append(
            ExternalCallRecord(
                name=call.name,
                side_effect=tool.side_effect,
                status=CallStatus.TIMEOUT,
                request_digest=call.digest,
            )
        )


def call_digest(args: list[Any], kwargs: dict[str, Any]) -> str:
    """The digest of arguments that were read from JSON."""
    return digest_bytes(_canonical({"args": args, "kwargs": kwargs}))


# --- stopwatch ------------------------------------------------------------------------------------

# The time that a run has used: wall time, and CPU time of the guest.
#
# This is the only module of the sandbox that reads clocks; a guest never sees the readings. A run
# may use several threads one after the other, so the used time is part of its state.


_NS_PER_MS = 1_000_000


class Stopwatch:
    """Measures between ``begin`` and ``end``. CPU time is counted between ``enter_thread``, which
    ``begin`` implies, and ``leave_thread``, which the same thread calls."""

    def __init__(self, limits: SessionLimits) -> None:
        self._wall_ns_max = limits.wall_ms * _NS_PER_MS
        self._cpu_ns_max = limits.cpu_ms * _NS_PER_MS
        self.wall_ns = self.cpu_ns = 0
        self._began_ns = self._cpu_began_ns = self._host_began_ns = 0
        self._running = False

    @property
    def wall_ms(self) -> int:
        return self._wall_used_ns() // _NS_PER_MS

    @property
    def wall_is_over(self) -> bool:
        return self._wall_used_ns() > self._wall_ns_max

    def begin(self) -> None:
        self._running = True
        self._began_ns = time.perf_counter_ns()
        self.enter_thread()

    def end(self) -> None:
        self.wall_ns = self._wall_used_ns()
        self._running = False
        self.leave_thread()

    def enter_thread(self) -> None:
        self._cpu_began_ns = time.thread_time_ns()

    def leave_thread(self) -> None:
        now_ns = time.thread_time_ns()
        self.cpu_ns += now_ns - self._cpu_began_ns
        self._cpu_began_ns = now_ns

    def enter_host(self) -> None:
        """Stop counting CPU time: the guest's thread executes a host function."""
        self.leave_thread()
        self._host_began_ns = time.perf_counter_ns()

    def leave_host(self) -> int:
        """Count CPU time again; returns the milliseconds since ``enter_host``."""
        self.enter_thread()
        return (time.perf_counter_ns() - self._host_began_ns) // _NS_PER_MS

    def count_wall(self, duration_ms: int) -> None:
        """Add the time of calls that were made while the run was suspended."""
        self.wall_ns += duration_ms * _NS_PER_MS

    def check(self) -> None:
        """Raise ``GuestStopped`` if the time is over."""
        if self.wall_is_over:
            used = self._wall_ns_max // _NS_PER_MS
            raise GuestStopped("TIMEOUT_WALL", f"the run took longer than {used} ms")
        if self.cpu_ns + time.thread_time_ns() - self._cpu_began_ns > self._cpu_ns_max:
            used = self._cpu_ns_max // _NS_PER_MS
            raise GuestStopped("TIMEOUT_CPU", f"the program computed longer than {used} ms")

    def _wall_used_ns(self) -> int:
        since = time.perf_counter_ns() - self._began_ns if self._running else 0
        return self.wall_ns + since


# --- results --------------------------------------------------------------------------------------

# Builds the ``RunResult`` of a run from its last step and its meters.


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
