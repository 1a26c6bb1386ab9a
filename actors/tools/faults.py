"""Faults of calls as programs see them, within the limits of storage.

A call passes its checks in this order before its intent: the tool is visible; the arguments are
bound and match the schema; their size; then permission, for which a capability can only require an
approval so far. Where approvals are not decided the call is denied.
"""

from __future__ import annotations

from typing import Final

from rookery.schemas.calls import ToolFault
from rookery.schemas.errors import CodedError
from rookery.schemas.run import CallStatus

__all__ = ["fault", "fault_of", "status_of"]

CODE_MAX: Final = 100
MESSAGE_MAX: Final = 4_000
"""Characters of a tool's failure in facts and for the program."""


# --- faults ---------------------------------------------------------------------------------------


def fault(code: str, message: str) -> ToolFault:
    """A fault whose texts can be stored."""
    return ToolFault(_storable_text(code, CODE_MAX), _storable_text(message, MESSAGE_MAX))


def fault_of(error: CodedError) -> ToolFault:
    """The fault of a refusal or a failure."""
    hint = f" ({error.hint})" if error.hint else ""
    return fault(error.code, f"{error.message}{hint}")


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
