"""The protocol with outside approvers: the encoded request and the decoded reply.

A reply that does not decode raises, and the broker counts the dispatcher as unavailable.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from rookery.actors.approvals.dispatchers.port import (
    Cancelled,
    Decision,
    DispatchResult,
    Pending,
    Terms,
    TimedOut,
    Unavailable,
    actor_ref,
)
from rookery.schemas.approvals.decision import DecideApproval
from rookery.schemas.approvals.dispatch import (
    ApprovalDispatch,
    DispatchOutcome,
    DispatchReply,
)
from rookery.schemas.approvals.records import ApprovalRequest, decision_from_token
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Refused
from rookery.schemas.typed_ids import IdValidationError

__all__ = ["decode_reply", "dispatch_id", "encode_request"]

_REASON_CODE: Final = re.compile(r"[a-z0-9_.]{1,100}")

_decode = msgspec.json.Decoder(DispatchReply).decode


def dispatch_id(request: ApprovalRequest) -> str:
    """The id of the request; every repeat has the same."""
    return f"ask/{request.approval_request_id.as_str()}"


def encode_request(realm: str, request: ApprovalRequest, terms: Terms) -> bytes:
    return encode_json(
        ApprovalDispatch(
            realm=realm,
            approval_id=request.approval_request_id.as_str(),
            request_digest=terms.request_digest,
            tool_digest=terms.tool_digest,
            due_ms=terms.due_ms,
            request=request,
        )
    )


def decode_reply(request: ApprovalRequest, body: bytes) -> DispatchResult:
    """Decode a reply into its result."""
    try:
        reply = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Refused(
            "INVALID_JSON", f"the reply to an approval request does not decode: {error}"
        ) from None
    match reply.outcome:
        case DispatchOutcome.DECIDED:
            return _to_decision(request, reply.answer)
        case DispatchOutcome.PENDING:
            return Pending()
        case DispatchOutcome.TIMED_OUT:
            return TimedOut()
        case DispatchOutcome.CANCELLED:
            return Cancelled()
        case DispatchOutcome.UNAVAILABLE:
            named = _REASON_CODE.fullmatch(reply.reason_code)
            return Unavailable(reply.reason_code if named else "approval.dispatcher_unavailable")


def _to_decision(request: ApprovalRequest, answer: DecideApproval | None) -> Decision:
    if answer is None:
        raise Refused("INVALID_ARGUMENT", "the reply is decided but has no answer")
    try:
        decision = decision_from_token(answer.decision, actor_ref(request, answer.actor))
    except IdValidationError as error:
        raise Refused(
            "INVALID_ARGUMENT", f"the actor of the answer is not a valid name: {error}"
        ) from None
    if decision is None:
        raise Refused("INVALID_ARGUMENT", f"{answer.decision[:40]!r} is not a decision")
    return Decision(decision, answer)
