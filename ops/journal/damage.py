"""What is wrong with a journal: kinds of defects, and what each means."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

__all__ = ["EXIT_CODES", "DefectKind", "MessageDamage"]


class DefectKind(StrEnum):
    """What a defect proves."""

    DAMAGED = "damaged"
    """A message does not continue its chain or does not decode; readers skip it."""
    FORGED = "forged"
    """A fact says what its key has not signed."""
    HISTORY = "history"
    """The journal is not the one that a node signed, or that an anchor saw."""


EXIT_CODES: Final = {DefectKind.DAMAGED: 1, DefectKind.FORGED: 6, DefectKind.HISTORY: 7}
"""Of ``journal verify``; with several kinds the highest."""


class MessageDamage(msgspec.Struct, frozen=True, kw_only=True):
    """A defect at a message, or of the messages that end with it."""

    sequence: int
    entity: str
    code: str
    message: str
    kind: DefectKind = DefectKind.DAMAGED

    @classmethod
    def forged(cls, sequence: int, entity: str, text: str) -> MessageDamage:
        """A message whose facts their key has not signed."""
        return cls(
            sequence=sequence,
            entity=entity,
            code="FACT_FORGED",
            message=text,
            kind=DefectKind.FORGED,
        )

    @property
    def words(self) -> str:
        """The defect as a sentence."""
        entity = f" of {self.entity}" if self.entity else ""
        return f"message {self.sequence}{entity}: {self.message}"
