"""The checks a call passes before its intent, in their order, and faults as programs see them.

Visible; arguments bound and checked against the schema; their size; then leave to call, of hooks,
permissions, the sandbox policy and approvals, in this order. Of the last four a capability can only
ask for approval yet: who gives it is not known here, but where nobody can be asked the call is
denied, never let through. The budget of calls is the sandbox's, places are the ledger's, what comes
after the act is checked where the answer arrives.
"""

from __future__ import annotations

from typing import Final

from rookery.schemas.calls import ToolFault
from rookery.schemas.errors import CodedError
from rookery.schemas.run import CallStatus

__all__ = ["fault", "fault_of", "status_of"]

CODE_MAX: Final = 100
MESSAGE_MAX: Final = 4_000
"""What a tool says of its failure stands in facts and goes to the program: not more than this."""


# --- faults ---------------------------------------------------------------------------------------


def fault(code: str, message: str) -> ToolFault:
    """A fault whose texts can be stored, whatever a tool put into them."""
    return ToolFault(_storable_text(code, CODE_MAX), _storable_text(message, MESSAGE_MAX))


def fault_of(error: CodedError) -> ToolFault:
    """A refusal, or a failure, as the program sees it."""
    hint = f" ({error.hint})" if error.hint else ""
    return fault(error.code, f"{error.message}{hint}")


def status_of(wrong: ToolFault) -> CallStatus:
    """The word for it in the record of the call."""
    match wrong.code:
        case "PERMISSION_DENIED":
            return CallStatus.DENIED
        case "TIMEOUT_TOOL":
            return CallStatus.TIMEOUT
        case _:
            return CallStatus.ERROR


def _storable_text(said: object, length_max: int) -> str:
    return str(said)[:length_max].encode("utf-8", "replace").decode()
