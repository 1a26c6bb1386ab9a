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

__all__ = ["Watermark", "WatermarkHold", "WatermarkState"]


class WatermarkState(NamedTuple):
    """How far all is done, and what is not."""

    through: int = 0
    """Nothing is left to be done for a fact up to this sequence,"""
    unfinished: tuple[int, ...] = ()
    """but for these, in order."""


class WatermarkHold:
    """Something that is still to be done; closing it twice is harmless."""

    __slots__ = ("_holds", "_sequence", "_watermark")

    def __init__(self, horizon: Watermark, book: dict[int, int], sequence: int) -> None:
        self._watermark: Watermark | None = horizon
        self._holds, self._sequence = book, sequence

    def release(self) -> None:
        """It is done, or came to nothing."""
        if self._watermark is not None:
            self._watermark.on_released(self._holds, self._sequence)
            self._watermark = None


class Watermark:
    """Tickets are opened on the loop and closed anywhere."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        """The highest sequence known to stand."""
        self._held_facts: dict[int, int] = {}
        """How many tickets are open, by the sequence of the fact."""
        self._appending: dict[int, int] = {}
        """The same of appends, by the lowest sequence they may get."""

    def hold(self, sequence: int) -> WatermarkHold:
        """The fact at ``sequence`` calls for something."""
        return self._hold(self._held_facts, sequence)

    def hold_next(self) -> WatermarkHold:
        """Something is about to be appended: it will stand above all that is known to stand."""
        return self._hold(self._appending, self._last + 1)

    def advance(self, sequence: int) -> None:
        """A fact stands at ``sequence``, and what it calls for has its tickets."""
        self._last = max(self._last, sequence)

    def reset(self) -> None:
        """Another journal is in the place of the one that all this was about."""
        with self._lock:
            self._last = 0
            self._held_facts, self._appending = {}, {}

    def on_released(self, book: dict[int, int], sequence: int) -> None:
        """A ticket's own business."""
        with self._lock:
            book[sequence] -= 1
            if not book[sequence]:
                del book[sequence]

    @property
    def held(self) -> int:
        """For how many facts something is to be done."""
        return len(self._held_facts)

    def state(self, unfinished_max: int) -> WatermarkState:
        """Where the horizon stands: no higher than leaves so much unfinished below it."""
        with self._lock:
            called_for = list(self._held_facts)
            through = min(self._last, min(self._appending, default=self._last + 1) - 1)
        unfinished = sorted(sequence for sequence in called_for if sequence <= through)
        if len(unfinished) > unfinished_max:
            through = unfinished[unfinished_max] - 1
        return WatermarkState(through, tuple(unfinished[:unfinished_max]))

    def _hold(self, book: dict[int, int], sequence: int) -> WatermarkHold:
        with self._lock:
            book[sequence] = book.get(sequence, 0) + 1
        return WatermarkHold(self, book, sequence)
