"""The checks a call passes before its intent, in their order, and faults as programs see them.

Visible; arguments bound and checked against the schema; their size; then leave to call, of hooks,
permissions, the sandbox policy and approvals, in this order. Of the last four a capability can only
ask for approval yet: who gives it is not known here, but where nobody can be asked the call is
denied, never let through. The budget of calls is the sandbox's, places are the ledger's, what comes
after the act is checked where the answer arrives.
"""

from __future__ import annotations

from typing import Final

from rookery.actors.tools.catalogue import CatalogueTool
from rookery.schemas.calls import CallArguments, ToolFault
from rookery.schemas.capability import ApprovalMode
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.run import CallStatus
from rookery.schemas.seed.policy import MissingDependency

__all__ = [
    "check_arguments",
    "fault",
    "fault_of",
    "require_permission",
    "requires_approval",
    "status_of",
]

CODE_MAX: Final = 100
MESSAGE_MAX: Final = 4_000
"""What a tool says of its failure stands in facts and goes to the program: not more than this."""


def check_arguments(tool: CatalogueTool, arguments: CallArguments) -> None:
    """Refuse what the schema does not describe, and what is too large."""
    tool.checks.check_arguments(arguments.args, arguments.kwargs)
    tool.checks.encode_request(arguments.args, arguments.kwargs)


def requires_approval(tool: CatalogueTool) -> bool:
    """Whether somebody, or a rule, has to allow its calls."""
    return tool.capability.approval_policy is not ApprovalMode.NONE


def require_permission(tool: CatalogueTool, *, approvals: bool) -> None:
    """Refuse what nobody here may allow; ``approvals``: somebody can be asked for one."""
    if requires_approval(tool) and not approvals:
        raise Refused(
            "PERMISSION_DENIED",
            f"{MissingDependency.APPROVAL_DISPATCHER.reason_code}: "
            f"{tool.available.name} wants an approval and nobody here can be asked for one",
        )


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
