"""The port of dispatchers, which deliver approval requests to approvers, and their results.

A dispatcher only delivers and may wait for an answer; the broker decides which answers are valid.
After a crash a dispatcher may get a request again, with the same id.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import msgspec

from rookery.schemas.approvals.decision import DecideApproval
from rookery.schemas.approvals.records import ApprovalDecision, ApprovalRequest
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
]


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
