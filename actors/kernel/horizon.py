"""The horizon: up to this sequence of the journal nothing is left to be done by this node.

Reactions and effects are found again after a crash by reading the journal from the horizon of the
dead node. What is to be done holds a ticket: appends from before they are sent, reactions and
effects until they have ended. So there is no moment at which a crash loses sight of one.
"""

from __future__ import annotations

import threading
from heapq import heappop, heappush

__all__ = ["Horizon", "Ticket"]


class Ticket:
    """Something that is still to be done; closing it twice is harmless."""

    __slots__ = ("_horizon", "_sequence")

    def __init__(self, horizon: Horizon, sequence: int) -> None:
        self._horizon: Horizon | None = horizon
        self._sequence = sequence

    def close(self) -> None:
        """It is done, or came to nothing."""
        if self._horizon is not None:
            self._horizon.closed(self._sequence)
            self._horizon = None


class Horizon:
    """Tickets are opened on the loop and closed anywhere."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        """The highest sequence known to stand."""
        self._open: dict[int, int] = {}
        """How many tickets are open, by sequence."""
        self._sequences: list[int] = []
        """A heap of these sequences and of some that have no ticket any more."""

    def open(self, sequence: int) -> Ticket:
        """The fact at ``sequence`` calls for something."""
        with self._lock:
            if sequence not in self._open:
                heappush(self._sequences, sequence)
            self._open[sequence] = self._open.get(sequence, 0) + 1
        return Ticket(self, sequence)

    def open_next(self) -> Ticket:
        """Something is about to be appended: it will stand above all that is known to stand."""
        return self.open(self._last + 1)

    def passed(self, sequence: int) -> None:
        """A fact stands at ``sequence``, and what it calls for has its tickets."""
        self._last = max(self._last, sequence)

    def closed(self, sequence: int) -> None:
        """A ticket's own business."""
        with self._lock:
            self._open[sequence] -= 1
            if not self._open[sequence]:
                del self._open[sequence]

    def now(self) -> int:
        """Where the horizon stands."""
        with self._lock:
            sequences = self._sequences
            while sequences and sequences[0] not in self._open:
                heappop(sequences)
            return sequences[0] - 1 if sequences else self._last
