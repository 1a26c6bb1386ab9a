"""Enums with two spellings, and externally tagged unions.

Facts and replies carry an enum's word (``llm_failure``). Traces and tables of the machines spell
the name of the variant (``LlmFailure``), which is accepted wherever the word is. An enum whose word
is the variant's name is a plain ``StrEnum``.

An externally tagged union is an object with one member, named by its case: ``{"Deny": {"reason":
...}}``. Here it is a struct with one optional field per case, of which exactly one is set.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

import msgspec

__all__ = ["Tagged", "Variant"]


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
