"""The pause between attempts that grows up to a maximum."""

from __future__ import annotations

__all__ = ["Backoff"]


class Backoff:
    """A pause of ``first_s`` that is multiplied after each attempt, up to ``last_s``."""

    def __init__(self, first_s: float, last_s: float, *, growth: float = 2.0) -> None:
        self.pause_s = first_s
        self._first_s, self._last_s, self._growth = first_s, last_s, growth

    def next_s(self) -> float:
        """The pause to make now; the one after it is longer."""
        pause_s = self.pause_s
        self.pause_s = min(self._growth * pause_s, self._last_s)
        return pause_s

    def reset(self) -> None:
        """Begin with ``first_s`` again."""
        self.pause_s = self._first_s
