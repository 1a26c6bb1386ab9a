"""Dispatchers: who puts an approval before somebody, and what may come of that.

A dispatcher owns asking and, if it likes, waiting. It decides nothing: what counts as an answer,
and what follows from it, is the broker's. It may be asked twice for one request, after a crash, and
tells by the request's id.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import msgspec

from rookery.schemas.approvals.decision import DecideApproval
from rookery.schemas.approvals.records import ApprovalDecision, ApprovalRequest

__all__ = [
    "Cancelled",
    "Decision",
    "DispatchResult",
    "Dispatcher",
    "Pending",
    "Terms",
    "TimedOut",
    "Unavailable",
]


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer to a request has to fit, beside the request."""

    request_digest: str
    """Of the exact arguments; an answer repeats it."""
    due_ms: int
    """Unix time after which no answer counts."""


class Decision(msgspec.Struct, frozen=True):
    """Somebody has decided."""

    decision: ApprovalDecision
    answer: DecideApproval | None = None
    """As it came, with its signature; without one nobody's key stands for the decision."""
    arrived_ms: int = 0
    """When it came, by the node's clock; 0 until somebody has looked at one."""


class TimedOut(msgspec.Struct, frozen=True):
    """Whoever was asked has let the time pass."""


class Cancelled(msgspec.Struct, frozen=True):
    """Whoever was asked has called it off."""


class Unavailable(msgspec.Struct, frozen=True):
    """Nobody could be asked."""

    reason_code: str


class Pending(msgspec.Struct, frozen=True):
    """Somebody was asked, and the answer will come as the command ``decide``, or not at all."""


DispatchResult: TypeAlias = Decision | TimedOut | Cancelled | Unavailable | Pending


class Dispatcher(Protocol):
    """One way to an approver."""

    @property
    def name(self) -> str:
        """As ``approvals.dispatchers`` lists it."""

    async def dispatch(self, request: ApprovalRequest, terms: Terms) -> DispatchResult:
        """Ask. Whatever it raises is an answer, too: nobody could be asked. It is cancelled when
        the answer came another way."""
