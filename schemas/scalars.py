"""Scalars of the contract: integers of 64 bits, enums with two spellings, tagged unions."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Self

import msgspec
from msgspec import Meta

__all__ = [
    "U64_MAX",
    "PageLimit",
    "Tagged",
    "Unsigned",
    "Variant",
    "saturate",
    "unix_ms",
]

# --- enums ----------------------------------------------------------------------------------------

# Facts and replies carry an enum's word (``llm_failure``). Traces and tables of the machines spell
# the name of the variant (``LlmFailure``), which is accepted wherever the word is. An enum whose
# word is the variant's name is a plain ``StrEnum``.
#
# An externally tagged union is an object with one member, named by its case: ``{"Deny": {"reason":
# ...}}``. Here it is a struct with one optional field per case, of which exactly one is set.


class Variant(StrEnum):
    """An enum whose word differs from the name of its variant."""

    @property
    def variant(self) -> str:
        """The variant's name in the contract: the member's, in capitals without underscores."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return next((member for member in cls if member.variant == value), None)


class Tagged(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="pascal"):
    """A struct with exactly one of its fields set."""

    def __post_init__(self) -> None:
        if sum(getattr(self, name) is not None for name in self.__struct_fields__) != 1:
            cases = ", ".join(self.__struct_encode_fields__)
            raise ValueError(f"{type(self).__name__} needs exactly one of {cases}")


# --- integers -------------------------------------------------------------------------------------

# Integers of the model: unsigned, 64 bits, saturating.
#
# Inputs have one bit less, so that a sum of two still fits every codec; counters stop at the
# maximum instead of wrapping.


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
