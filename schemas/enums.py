"""Enums with two spellings: the word on the wire, and the name of the variant in the seeds.

The word is what facts and answers carry (``llm_failure``); the variant (``LlmFailure``) is how
traces and tables of the machines spell it, and is understood wherever the word is. Enums whose
word is the variant's name are plain ``StrEnum``.

Externally tagged unions: an object with one member, named by the case it holds.

``{"Deny": {"reason": ...}}`` is how the seeds write such a union. Here it is a struct with one
optional field a case, of which exactly one is set.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

import msgspec

__all__ = ["Tagged", "Variant"]


class Variant(StrEnum):
    """An enum whose word is not the name of its variant."""

    @property
    def variant(self) -> str:
        """The name in the seeds: the member's own, in capitals without underscores."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return next((member for member in cls if member.variant == value), None)


class Tagged(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="pascal"):
    """What has exactly one of its fields set."""

    def __post_init__(self) -> None:
        if sum(getattr(self, name) is not None for name in self.__struct_fields__) != 1:
            cases = ", ".join(self.__struct_encode_fields__)
            raise ValueError(f"{type(self).__name__} is exactly one of {cases}")
