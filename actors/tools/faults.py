"""Faults of calls as programs see them, within the limits of storage.

A call passes its checks in this order before its intent: the tool is visible; the arguments are
bound and match the schema; their size; then permission, for which a capability can only require an
approval so far. Where approvals are not decided the call is denied.
"""

from __future__ import annotations

import logging
import traceback
from datetime import UTC, datetime
from typing import Final

from rookery.schemas.calls import ToolFault
from rookery.schemas.errors import CodedError
from rookery.schemas.run import CallStatus

__all__ = ["fault", "fault_of", "iso_time", "logged_fault", "status_of"]

log = logging.getLogger(__name__)

CODE_MAX: Final = 100
TRACEBACK_MAX: Final = 20_000
MESSAGE_MAX: Final = 4_000
"""Characters of a tool's failure in facts and for the program."""
_TIME_MAX_MS: Final = 253_402_300_799_000
"""A timeout may be any number; ISO times end here."""


# --- faults ---------------------------------------------------------------------------------------


def fault(code: str, message: str) -> ToolFault:
    """A fault whose texts can be stored."""
    return ToolFault(_storable_text(code, CODE_MAX), _storable_text(message, MESSAGE_MAX))


def fault_of(error: CodedError) -> ToolFault:
    """The fault of a refusal or a failure."""
    hint = f" ({error.hint})" if error.hint else ""
    return fault(error.code, f"{error.message}{hint}")


def logged_fault(name: str, call_id: str, error: BaseException, *, sensitive: bool) -> ToolFault:
    """The fault of an exception that the tool did not raise for its callers. Its text may hold
    anything, so only the log gets it; if the tool has sensitive values, nobody does."""
    lines = _frames(error) if sensitive else traceback.format_exception(error)
    text = "\n".join(line.rstrip() for line in lines)[-TRACEBACK_MAX:]
    log.error("tool failed", extra={"tool": name, "call_id": call_id, "traceback": text})
    where = f"see call {call_id} in the log of its node or worker"
    return fault("TOOL_ERROR", f"{name} failed: {where}")


def _frames(error: BaseException) -> list[str]:
    """The types and lines of an exception and its causes, without their texts."""
    lines: list[str] = []
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        lines += traceback.format_tb(found.__traceback__)
        lines.append(f"{type(found).__name__}, whose text may be sensitive")
        found = found.__cause__ or (None if found.__suppress_context__ else found.__context__)
    return lines


def status_of(wrong: ToolFault) -> CallStatus:
    """The fault's status in the record of the call."""
    match wrong.code:
        case "PERMISSION_DENIED":
            return CallStatus.DENIED
        case "TIMEOUT_TOOL":
            return CallStatus.TIMEOUT
        case _:
            return CallStatus.ERROR


def _storable_text(value: object, length_max: int) -> str:
    return str(value)[:length_max].encode("utf-8", "replace").decode()


def iso_time(at_ms: int) -> str:
    """A time in a text for people."""
    at_s = min(at_ms, _TIME_MAX_MS) / 1_000
    return datetime.fromtimestamp(at_s, UTC).isoformat(" ", "milliseconds")
