"""What comes out of a run while it goes on: output, call records, meters. All of it comes out the
same when the run is replayed, but for durations, which are recorded with the answers.
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
    """An awaited call nobody answered yet, and the guest's own number for it."""

    number: int
    call: ProgramCall


class RunMeters(msgspec.Struct):
    """Copied where a run can be taken up again."""

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
        """Keep what fits, in whole characters, and nothing after a gap. Whether more may come."""
        name = "stderr" if channel == 2 else "stdout"
        if name in self.cut:
            return False
        kept: bytes = getattr(self, name)
        room = size_bytes_max - len(kept)
        if len(text) > room:
            text = text[:room].decode(errors="ignore").encode()
            self.cut += (name,)
        setattr(self, name, kept + text)
        return name not in self.cut

    def record_result(self, call: ProgramCall, told: RecordedResult, tool: Tool) -> None:
        """A call that came to its end."""
        status, error = CallStatus.OK, None
        if told.error is not None:
            status = _STATUSES.get(told.error.code, CallStatus.ERROR)
            error = ErrorObject(code=told.error.code, message=told.error.message)
        self.records.append(
            ExternalCallRecord(
                name=call.name,
                side_effect=tool.side_effect,
                duration_ms=told.duration_ms,
                status=status,
                request_digest=call.digest,
                response_digest=None if error else digest_bytes(told.value),
                error=error,
            )
        )

    def record_dropped(self, call: ProgramCall, tool: Tool) -> None:
        """A call that its program did not wait for to the end."""
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
        """A call that was under way when the run's time was over."""
        self.records.append(
            ExternalCallRecord(
                name=call.name,
                side_effect=tool.side_effect,
                status=CallStatus.TIMEOUT,
                request_digest=call.digest,
            )
        )


def call_digest(args: list[Any], kwargs: dict[str, Any]) -> str:
    """The arguments were read from JSON, so they have a canonical form."""
    return digest_bytes(_canonical({"args": args, "kwargs": kwargs}))
