"""The rules of redelivery: how far a partition is done, and how a new owner continues.

Messages are delivered in the order of their sequences, so one number says which are done. An owner
that died with delivered messages leaves suspects: one of them may have killed it. A node works on
one suspect at a time, whatever the partition, and only the first of a partition counts a death. So
the message that kills its owners is found, and no other message is blamed. Both buses use these
rules, which are pure.
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
"""A message whose owner died this often while working on it becomes a dead letter."""


class PreviousOwnerState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a partition under its previous owner."""

    began: int
    """The last sequence that was done when that owner took over."""
    floor: int
    """All messages up to this sequence are done."""
    delivered: int
    """The last message that was sent to the owner."""
    suspects_to: int = 0
    deaths: int = 0
    """How many owners had died while working on the first message after ``began``."""
    orderly: bool = False
    """Whether the owner released the partition itself, so that no message is a suspect."""


class PartitionCursor:
    """The position of an owner in a partition, and its suspects."""

    def __init__(self, floor: int = 0, suspects_to: int = 0, deaths: int = 0) -> None:
        self.floor, self.suspects_to, self.deaths = floor, suspects_to, deaths

    @classmethod
    def after(cls, previous: PreviousOwnerState) -> PartitionCursor:
        """The position from which the next owner continues."""
        suspected = previous.suspects_to > previous.floor
        deaths = previous.deaths if previous.floor == previous.began else int(suspected)
        if previous.orderly or previous.delivered <= previous.floor:
            return cls(previous.floor, previous.suspects_to, deaths)
        return cls(previous.floor, max(previous.suspects_to, previous.delivered), deaths + 1)

    @property
    def must_deliver_alone(self) -> bool:
        """Whether the next message is a suspect, which is delivered alone."""
        return self.floor < self.suspects_to

    def attempt(self, sequence: int) -> int:
        """The number of the message's next delivery, from 1."""
        return 1 + max(1, self.deaths) if sequence <= self.suspects_to else 1

    def mark_done(self, sequence: int) -> None:
        """All messages up to ``sequence`` are done."""
        self.floor, self.deaths = sequence, 0

    def clear_suspects(self) -> None:
        """Record that no suspect is left."""
        self.suspects_to = self.deaths = 0


class SuspectGate:
    """Lets a node work on one suspect at a time; the partitions take turns."""

    def __init__(self) -> None:
        self._holder: object = None
        self._waiting: deque[tuple[object, Callable[[], None]]] = deque()

    def enter(self, user: object, on_admitted: Callable[[], None]) -> None:
        """Call ``on_admitted`` when it is the turn of ``user``; a repetition has no effect."""
        if self._holder is user or any(user is waiting for waiting, _ in self._waiting):
            return
        self._waiting.append((user, on_admitted))
        self._admit()

    def exit(self, user: object) -> None:
        """Release the gate, or stop waiting for it; may be repeated."""
        self._waiting = deque(entry for entry in self._waiting if entry[0] is not user)
        if self._holder is user:
            self._holder = None
            self._admit()

    def _admit(self) -> None:
        if self._holder is None and self._waiting:
            self._holder, on_admitted = self._waiting.popleft()
            on_admitted()
