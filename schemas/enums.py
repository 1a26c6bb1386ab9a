"""Enums with two spellings: the word on the wire, and the name of the variant in the seeds.

The word is what facts and answers carry (``llm_failure``); the variant (``LlmFailure``) is how
traces and tables of the machines spell it, and is understood wherever the word is. Enums whose
word is the variant's name are plain ``StrEnum``.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

__all__ = ["Variant"]


class Variant(StrEnum):
    """An enum whose word is not the name of its variant."""

    @property
    def variant(self) -> str:
        """The name in the seeds: the member's own, in capitals without underscores."""
        return "".join(part.capitalize() for part in self.name.split("_"))

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return next((member for member in cls if member.variant == value), None)
