"""How far the leader of a replicated journal may be behind what its readers have seen.

A server that has just become the leader has every acknowledged message in its log and may still be
applying them, so for a moment its stream ends before the position of a reader (seen: 6,500 messages
after a rolling restart). A journal with one copy that ends there was truncated or replaced.
"""

from __future__ import annotations

from typing import Final

from rookery.bus.clock import monotonic_s
from rookery.schemas.errors import Failed

__all__ = ["LeaderLag"]

_LAG_S_MAX: Final = 15.0


class LeaderLag:
    """Decides what a journal that ends too early means to one reader."""

    def __init__(self) -> None:
        self._since_s: float | None = None

    def check(self, last: int, position: int, copies: int) -> None:
        """Raise if the journal ends before the position: ``Failed`` SERVER_UNREACHABLE while its
        leader may catch up, then FEED_GAP."""
        if last >= position:
            self._since_s = None
            return
        now_s = monotonic_s()
        if copies > 1 and self._since_s is None:
            self._since_s = now_s
        if self._since_s is not None and now_s - self._since_s < _LAG_S_MAX:
            raise Failed("SERVER_UNREACHABLE", f"the journal's leader has {last} of {position}")
        raise Failed(
            "FEED_GAP",
            f"the journal ends at {last}, before the position {position}: "
            "it was truncated or replaced",
        )
