"""The port of dispatchers, and their protocol with outside approvers."""

from __future__ import annotations

import re
from typing import Final, Protocol, TypeAlias

import msgspec

from rookery.schemas.approvals.dispatch import ApprovalDispatch, DispatchOutcome, DispatchReply
from rookery.schemas.approvals.records import (
    ApprovalDecision,
    ApprovalRequest,
    DecideApproval,
    decision_from_token,
)
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import Refused
from rookery.schemas.ids import IdValidationError
from rookery.schemas.seed.refs import SourceKind, SourceRef

__all__ = [
    "Cancelled",
    "Decision",
    "DispatchResult",
    "Dispatcher",
    "Pending",
    "Terms",
    "TimedOut",
    "Unavailable",
    "actor_ref",
    "decode_reply",
    "dispatch_id",
    "encode_request",
]

# --- port -----------------------------------------------------------------------------------------

# The port of dispatchers, which deliver approval requests to approvers, and their results.
#
# A dispatcher only delivers and may wait for an answer; the broker decides which answers are valid.
# After a crash a dispatcher may get a request again, with the same id.


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of a request that an answer must match."""

    request_digest: str
    """The digest of the exact arguments; an answer repeats it."""
    tool_digest: str = ""
    """Of the tool; a signed answer for the session repeats it."""
    due_ms: int
    """Unix time of the deadline."""


class Decision(msgspec.Struct, frozen=True):
    """An approver has decided."""

    decision: ApprovalDecision
    answer: DecideApproval | None = None
    """The answer as received, with its signature; without it no key vouches for the decision."""
    arrived_ms: int = 0
    """When the answer arrived, by the node's clock; 0 until the executor has checked it."""


class TimedOut(msgspec.Struct, frozen=True):
    """The dispatcher let the deadline pass."""


class Cancelled(msgspec.Struct, frozen=True):
    """The dispatcher cancelled the request."""


class Unavailable(msgspec.Struct, frozen=True):
    """The request reached no approver."""

    reason_code: str


class Pending(msgspec.Struct, frozen=True):
    """The request was delivered; an answer may come as the command ``decide``."""


DispatchResult: TypeAlias = Decision | TimedOut | Cancelled | Unavailable | Pending


class Dispatcher(Protocol):
    """One way to reach approvers."""

    @property
    def name(self) -> str:
        """The name in ``approvals.dispatchers``."""

    async def dispatch(self, request: ApprovalRequest, terms: Terms) -> DispatchResult:
        """Deliver the request. An exception counts as ``Unavailable``. The task is cancelled when
        an answer arrives by another way."""


def actor_ref(request: ApprovalRequest, actor: str) -> SourceRef:
    """The reference of the answering actor. An actor that uses the requester's name is treated as
    the requester."""
    if actor == request.source.id.as_str():
        return request.source
    return SourceRef.new(actor, SourceKind.USER)


# --- protocol -------------------------------------------------------------------------------------

# The protocol with outside approvers: the encoded request and the decoded reply.
#
# A reply that does not decode raises, and the broker counts the dispatcher as unavailable.


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
