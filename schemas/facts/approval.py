"""Facts of the family ``approval``: one per input of approval_lifecycle, and every input is taken.

What came to nothing is a fact too: the row says so, and whoever asked is told why by its effect.
"""

from __future__ import annotations

from rookery.schemas.approval import ApprovalAnswer, ApprovalStatus
from rookery.schemas.envelope import Fact

__all__ = ["APPROVAL_FACTS", "ApprovalFact"]


class _Row(Fact, frozen=True, kw_only=True):
    """A row of approval_lifecycle fired."""

    row: str = ""
    """The row's name in ``machines.md``; empty until the machine has decided."""
    approval_id: str


class Created(_Row, frozen=True, kw_only=True, tag="approval.created.v1"):
    """Somebody's word was asked for."""

    approve_ok: bool
    """Whether it may be approved, and so ``deny_ok``."""
    deny_ok: bool
    expiry: bool
    """Whether it expires; when is for whoever observes it to know."""


class Restored(_Row, frozen=True, kw_only=True, tag="approval.restored.v1"):
    """A record from elsewhere was taken over as it stood."""

    status: ApprovalStatus
    approve_ok: bool
    deny_ok: bool
    expiry: bool
    decision: ApprovalAnswer | None = None


class ExpiryObserved(_Row, frozen=True, kw_only=True, tag="approval.expiry_observed.v1"):
    """Somebody with a clock looked whether its time is over."""

    expired: bool


class Decided(_Row, frozen=True, kw_only=True, tag="approval.decided.v1"):
    """Somebody gave their word; the row says whether it counted."""

    decision: ApprovalAnswer


ApprovalFact = Created | Restored | ExpiryObserved | Decided
APPROVAL_FACTS = ApprovalFact
