"""Output, call records and meters of a run.

A replay produces the same ones; it reads the durations from the log.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rookery.actors.sandbox.contract import ProgramCall, Tool
from rookery.actors.sandbox.sessions.run_log import RecordedResult
from rookery.schemas.digest import digest_bytes
from rookery.schemas.run import (
    CallStatus,
    ErrorObject,
    ExternalCallRecord,
    OutputStream,
    RunOutput,
)

__all__ = ["PendingAwait", "RunMeters", "call_digest"]

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
