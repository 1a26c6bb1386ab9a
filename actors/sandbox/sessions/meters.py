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
    cut: tuple[str, ...] = ()
    """The streams that are full."""
    records: list[ExternalCallRecord] = []
    calls_started: int = 0
    fuel: int = 0
    memory_bytes: int = 0
    open: dict[int, PendingAwait] = {}

    def copy(self) -> RunMeters:
        return msgspec.structs.replace(self, records=list(self.records), open=dict(self.open))

    def emit(self, channel: int, text: bytes, size_bytes_max: int) -> bool:
        """Append what fits, in whole characters, and then nothing more; returns whether to emit
        more."""
        name = "stderr" if channel == 2 else "stdout"
        if name in self.cut:
            return False
        written: bytes = getattr(self, name)
        free_bytes = size_bytes_max - len(written)
        if len(text) > free_bytes:
            text = text[:free_bytes].decode(errors="ignore").encode()
            self.cut += (name,)
        setattr(self, name, written + text)
        return name not in self.cut

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
