"""Numbers as the model counts them: unsigned, 64 bits, saturating.

What comes in is bounded one bit below that, so that a sum of two still fits every codec; what is
counted stops at the top instead of wrapping.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

__all__ = ["U64_MAX", "PageLimit", "Unsigned", "saturate", "unix_ms"]

U64_MAX: Final = 2**64 - 1

Unsigned = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A parameter: bounds of msgspec fit 64 bits with a sign."""

PageLimit = Annotated[int, Meta(ge=1, le=1_000)]
"""How many rows a query asks for at most."""


def saturate(number: int) -> int:
    """``number``, or the largest there is."""
    return min(number, U64_MAX)


def unix_ms(since_epoch_ns: int) -> int:
    """Milliseconds of a clock that reads ``since_epoch_ns``; none before 1970."""
    return saturate(max(since_epoch_ns // 1_000_000, 0))
