"""What a machine answers an input with: the effects of a transition, or a rejection.

Both travel. A client of a live machine reads the effects in the view, and raises the rejection that
the machine raised.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from rookery.schemas.errors import Refused

__all__ = ["RejectionKind", "TransitionEffect", "TransitionRejected"]


class RejectionKind(StrEnum):
    """Whether the present state refuses the input (another may accept it) or no rule knows it."""

    GUARD_REJECTED = "GuardRejected"
    NO_MATCHING_TRANSITION = "NoMatchingTransition"


_CODES: Final = {
    RejectionKind.GUARD_REJECTED: "GUARD_REJECTED",
    RejectionKind.NO_MATCHING_TRANSITION: "NO_MATCHING_TRANSITION",
}


class TransitionRejected(Refused):
    """A machine rejects an input. ``str`` is the display form of the contract."""

    def __init__(
        self,
        context: str,
        reason: str,
        kind: RejectionKind = RejectionKind.NO_MATCHING_TRANSITION,
        hint: str = "",
    ) -> None:
        super().__init__(_CODES[kind], f"DSL transition rejected in {context}: {reason}", hint=hint)
        self.context, self.reason, self.kind = context, reason, kind
        self.details = {"kind": kind, "context": context, "reason": reason}

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.context, self.reason, self.kind, self.hint))


class TransitionEffect(msgspec.Struct, frozen=True, kw_only=True, tag_field="name", tag=True):
    """What a transition requests; not yet performed."""
