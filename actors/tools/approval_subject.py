"""A call as it is put before approvals: bound, and with exactly the arguments it was recorded with.

Whether it is allowed, and who is asked, is not known here.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec import UNSET

from rookery.actors.tools.catalogue import CatalogueTool
from rookery.actors.tools.faults import fault, fault_of
from rookery.actors.tools.state import ToolCall
from rookery.schemas.calls import CallArguments, RequestApproval, ToolFault
from rookery.schemas.digest import digest_bytes
from rookery.schemas.errors import CodedError

__all__ = ["ApprovalSubject", "approval_subject"]


class ApprovalSubject(NamedTuple):
    """What approvals are told of a call."""

    request: RequestApproval
    text: bytes
    """Its canonical arguments, whose digest an approval is bound to."""


def approval_subject(
    tool: CatalogueTool, call: ToolCall, arguments: CallArguments
) -> ApprovalSubject | ToolFault:
    """The call, or what is wrong with it: nobody is asked about one that cannot be made."""
    try:
        bound = tool.checks.check_arguments(arguments.args, arguments.kwargs)
        text = tool.checks.encode_request(arguments.args, arguments.kwargs)
    except CodedError as error:
        return fault_of(error)
    if digest_bytes(text) != call.request_digest or call.approval is UNSET:
        return fault("INVALID_ARGUMENT", f"these are not the arguments {call.name} was called with")
    said = RequestApproval(
        operation_id=call.operation_id,
        run_id=call.run,
        generation=call.generation,
        name=call.name,
        surface=call.surface,
        side_effect=tool.capability.side_effect,
        idempotent=call.idempotent,
        schema_digest=call.schema_digest,
        policy=call.approval,
        request_digest=call.request_digest,
        arguments=bound,
        arguments_ref=f"blob:{call.request_digest}",
    )
    return ApprovalSubject(said, text)
