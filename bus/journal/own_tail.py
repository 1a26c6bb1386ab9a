"""The end of the journal, as far back as every message is known to be our own.

A sequence is one message for ever, so acks that follow each other without a gap leave no room for
anybody else's. Whoever owns what does not matter here. It sends nothing and asks nobody; where it
knows too little, the server is to be asked (``rookery.bus.journal.append_resolution``).
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from rookery.schemas.envelope import EntityId

__all__ = ["OwnTail"]

MESSAGES_MAX = 1_024
"""Of more, the oldest are forgotten; looking all through them is quicker than asking."""


class OwnTail:
    """Used on the loop."""

    def __init__(self) -> None:
        self._entities: deque[EntityId] = deque(maxlen=MESSAGES_MAX)
        self._end = 0

    def add(self, sequence: int, entity: EntityId) -> None:
        """The server said that a message of ours stands there."""
        if sequence != self._end + 1:
            self._entities.clear()
        self._entities.append(entity)
        self._end = sequence

    def clear(self) -> None:
        """The server may be another one from now on, and have another past."""
        self._entities.clear()

    def has_no_message_of(self, entity: EntityId, after: int, through: int) -> bool:
        """Whether it is certain that none of the entity's messages stands above ``after`` and up
        to ``through``."""
        before = self._end - len(self._entities)
        if not before <= after <= through <= self._end:
            return False
        return entity not in islice(self._entities, after - before, through - before)
