"""The horizon: up to where, in the journal, nothing is left to be done by this node, and what is.

Reactions and effects are found again after a crash by reading the journal from the horizon of the
dead node. What is to be done holds a ticket: appends from before they are sent, reactions and
effects until they have ended. So there is no moment at which a crash loses sight of one. Of an
append nobody knows its sequence before it stands: the horizon stays below it. A reaction or effect
has its fact, so one that takes long is named, and does not hold up the horizon.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

__all__ = ["Horizon", "Standing", "Ticket"]


class Standing(NamedTuple):
    """How far all is done, and what is not."""

    through: int = 0
    """Nothing is left to be done for a fact up to this sequence,"""
    unfinished: tuple[int, ...] = ()
    """but for these, in order."""


class Ticket:
    """Something that is still to be done; closing it twice is harmless."""

    __slots__ = ("_book", "_horizon", "_sequence")

    def __init__(self, horizon: Horizon, book: dict[int, int], sequence: int) -> None:
        self._horizon: Horizon | None = horizon
        self._book, self._sequence = book, sequence

    def close(self) -> None:
        """It is done, or came to nothing."""
        if self._horizon is not None:
            self._horizon.closed(self._book, self._sequence)
            self._horizon = None


class Horizon:
    """Tickets are opened on the loop and closed anywhere."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        """The highest sequence known to stand."""
        self._called_for: dict[int, int] = {}
        """How many tickets are open, by the sequence of the fact."""
        self._appending: dict[int, int] = {}
        """The same of appends, by the lowest sequence they may get."""

    def open(self, sequence: int) -> Ticket:
        """The fact at ``sequence`` calls for something."""
        return self._opened(self._called_for, sequence)

    def open_next(self) -> Ticket:
        """Something is about to be appended: it will stand above all that is known to stand."""
        return self._opened(self._appending, self._last + 1)

    def passed(self, sequence: int) -> None:
        """A fact stands at ``sequence``, and what it calls for has its tickets."""
        self._last = max(self._last, sequence)

    def start_anew(self) -> None:
        """Another journal is in the place of the one that all this was about."""
        with self._lock:
            self._last = 0
            self._called_for, self._appending = {}, {}

    def closed(self, book: dict[int, int], sequence: int) -> None:
        """A ticket's own business."""
        with self._lock:
            book[sequence] -= 1
            if not book[sequence]:
                del book[sequence]

    @property
    def in_hand(self) -> int:
        """For how many facts something is to be done."""
        return len(self._called_for)

    def now(self, unfinished_max: int) -> Standing:
        """Where the horizon stands: no higher than leaves so much unfinished below it."""
        with self._lock:
            called_for = list(self._called_for)
            through = min(self._last, min(self._appending, default=self._last + 1) - 1)
        unfinished = sorted(sequence for sequence in called_for if sequence <= through)
        if len(unfinished) > unfinished_max:
            through = unfinished[unfinished_max] - 1
        return Standing(through, tuple(unfinished[:unfinished_max]))

    def _opened(self, book: dict[int, int], sequence: int) -> Ticket:
        with self._lock:
            book[sequence] = book.get(sequence, 0) + 1
        return Ticket(self, book, sequence)
