"""Meters of a run: output, call records, time and instructions."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from rookery.actors.sandbox.contract import ProgramCall, Tool
from rookery.actors.sandbox.runtime.wasm import GuestStopped
from rookery.actors.sandbox.sessions.run_log import RecordedResult
from rookery.schemas.digest import digest_bytes
from rookery.schemas.run import (
    CallStatus,
    ErrorObject,
    ExternalCallRecord,
    OutputStream,
    RunOutput,
    SessionLimits,
)

__all__ = [
    "PendingAwait",
    "RunMeters",
    "Stopwatch",
    "call_digest",
]

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
