"""Integers of the model: unsigned, 64 bits, saturating.

Inputs have one bit less, so that a sum of two still fits every codec; counters stop at the maximum
instead of wrapping.
"""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta

__all__ = ["U64_MAX", "PageLimit", "Unsigned", "saturate", "unix_ms"]

U64_MAX: Final = 2**64 - 1

Unsigned = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""An input; msgspec's bounds are limited to signed 64 bits."""

PageLimit = Annotated[int, Meta(ge=1, le=1_000)]
"""Largest number of rows in a page."""


def saturate(number: int) -> int:
    """``number``, or the maximum if that is smaller."""
    return min(number, U64_MAX)


def unix_ms(since_epoch_ns: int) -> int:
    """Unix time in milliseconds of a clock in nanoseconds; 0 before 1970."""
    return min(max(since_epoch_ns // 1_000_000, 0), U64_MAX)
