"""``Watermark``: the journal sequence up to which this node has nothing left to do.

After a crash the partition's next owner reads the journal from the watermark and finds unfinished
reactions and effects. Work in progress has a hold: an append from before it is sent, a reaction or
effect until it has ended, without a gap between them. An append has no sequence until it is
acknowledged, so the watermark stays below it. A slow reaction or effect is listed by its fact's
sequence instead of holding the watermark back.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

__all__ = ["Watermark", "WatermarkHold", "WatermarkState"]


class WatermarkState(NamedTuple):
    """The watermark and the unfinished facts below it."""

    through: int = 0
    """All facts up to this sequence are done,"""
    unfinished: tuple[int, ...] = ()
    """except these, in ascending order."""


class WatermarkHold:
    """One piece of unfinished work; releasing it twice is harmless."""

    __slots__ = ("_holds", "_sequence", "_watermark")

    def __init__(self, watermark: Watermark, holds: dict[int, int], sequence: int) -> None:
        self._watermark: Watermark | None = watermark
        self._holds, self._sequence = holds, sequence

    def release(self) -> None:
        """Mark the work as done or dropped."""
        if self._watermark is not None:
            self._watermark.on_released(self._holds, self._sequence)
            self._watermark = None


class Watermark:
    """Holds are created on the loop and released on any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0
        """The highest sequence known to be committed."""
        self._held_facts: dict[int, int] = {}
        """The number of holds per fact sequence."""
        self._appending: dict[int, int] = {}
        """The same for appends, by the lowest sequence they may get."""

    def hold(self, sequence: int) -> WatermarkHold:
        """Hold for a reaction to, or an effect of, the fact at ``sequence``."""
        return self._hold(self._held_facts, sequence)

    def hold_next(self) -> WatermarkHold:
        """Hold for an append about to be sent: its sequence will be above all known ones."""
        return self._hold(self._appending, self._last + 1)

    def advance(self, sequence: int) -> None:
        """Note that ``sequence`` is committed and that its reactions and effects have holds."""
        self._last = max(self._last, sequence)

    def reset(self) -> None:
        """Forget everything: the journal has been replaced."""
        with self._lock:
            self._last = 0
            self._held_facts, self._appending = {}, {}

    def on_released(self, holds: dict[int, int], sequence: int) -> None:
        """Called by ``WatermarkHold.release``."""
        with self._lock:
            holds[sequence] -= 1
            if not holds[sequence]:
                del holds[sequence]

    @property
    def held(self) -> int:
        """How many facts have holds."""
        return len(self._held_facts)

    def state(self, unfinished_max: int) -> WatermarkState:
        """The state to save, with at most ``unfinished_max`` facts listed below the watermark."""
        with self._lock:
            called_for = list(self._held_facts)
            through = min(self._last, min(self._appending, default=self._last + 1) - 1)
        unfinished = sorted(sequence for sequence in called_for if sequence <= through)
        if len(unfinished) > unfinished_max:
            through = unfinished[unfinished_max] - 1
        return WatermarkState(through, tuple(unfinished[:unfinished_max]))

    def _hold(self, holds: dict[int, int], sequence: int) -> WatermarkHold:
        with self._lock:
            holds[sequence] = holds.get(sequence, 0) + 1
        return WatermarkHold(self, holds, sequence)
