"""How far a partition is worked off, and what a new owner makes of what the last one left behind.

Messages are handed over in the order of their sequences, so one number says what is done. Whoever
died with messages in hand leaves suspects. A suspect is the only one in work on its node, whatever
the partition, and only the first of a partition counts a death: so what its owners die of is found
and nothing else is blamed. Pure; both buses keep their cursors by these rules.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

__all__ = [
    "ATTEMPTS_MAX",
    "BATCH_MESSAGES_MAX",
    "PartitionCursor",
    "PreviousOwnerState",
    "SuspectGate",
]

BATCH_MESSAGES_MAX = 512
ATTEMPTS_MAX = 5
"""A message whose owner died so often while working on it goes to the dead letters."""


class PreviousOwnerState(msgspec.Struct, frozen=True, kw_only=True):
    """A partition as its last owner left it."""

    began: int
    """What was done when that owner took over."""
    floor: int
    """All messages up to this sequence are done."""
    delivered: int
    """The last message that was sent to the owner."""
    suspects_to: int = 0
    deaths: int = 0
    """How often an owner had died over the first message after ``began``."""
    orderly: bool = False
    """Whether the owner gave the partition up itself, so that nothing can be blamed."""


class PartitionCursor:
    """An owner's place in a partition."""

    def __init__(self, floor: int = 0, suspects_to: int = 0, deaths: int = 0) -> None:
        self.floor, self.suspects_to, self.deaths = floor, suspects_to, deaths

    @classmethod
    def after(cls, left: PreviousOwnerState) -> PartitionCursor:
        """Where to go on."""
        suspected = left.suspects_to > left.floor
        deaths = left.deaths if left.floor == left.began else int(suspected)
        if left.orderly or left.delivered <= left.floor:
            return cls(left.floor, left.suspects_to, deaths)
        return cls(left.floor, max(left.suspects_to, left.delivered), deaths + 1)

    @property
    def must_deliver_alone(self) -> bool:
        """Whether the next message has to come alone."""
        return self.floor < self.suspects_to

    def attempt(self, sequence: int) -> int:
        """Which delivery of the next message this is."""
        return 1 + max(1, self.deaths) if sequence <= self.suspects_to else 1

    def mark_done(self, sequence: int) -> None:
        """All messages up to ``sequence`` are done."""
        self.floor, self.deaths = sequence, 0

    def clear_suspects(self) -> None:
        """There are no suspects (any more)."""
        self.suspects_to = self.deaths = 0


class SuspectGate:
    """Lets one suspect of a node be in work at a time; the partitions take turns."""

    def __init__(self) -> None:
        self._holder: object = None
        self._waiting: deque[tuple[object, Callable[[], None]]] = deque()

    def enter(self, who: object, go: Callable[[], None]) -> None:
        """Call ``go`` when it is ``who``'s turn; asking again while waiting changes nothing."""
        if self._holder is who or any(who is waiting for waiting, _ in self._waiting):
            return
        self._waiting.append((who, go))
        self._admit()

    def exit(self, who: object) -> None:
        """Inside, waiting or neither: ``who`` is done here."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not who)
        if self._holder is who:
            self._holder = None
            self._admit()

    def _admit(self) -> None:
        if self._holder is None and self._waiting:
            self._holder, go = self._waiting.popleft()
            go()
