"""The pause between attempts that doubles up to a maximum."""

from __future__ import annotations

__all__ = ["Backoff"]


class Backoff:
    """A pause of ``first_s`` that doubles after each attempt, up to ``last_s``."""

    def __init__(self, first_s: float, last_s: float) -> None:
        self.pause_s = first_s
        self._first_s, self._last_s = first_s, last_s

    def next_s(self) -> float:
        """The pause to make now; the one after it is longer."""
        pause_s = self.pause_s
        self.pause_s = min(2 * pause_s, self._last_s)
        return pause_s

    def reset(self) -> None:
        """Begin with ``first_s`` again."""
        self.pause_s = self._first_s
