"""``InFlightCounter``: the realm's unfinished inputs as one node sees them, for its quotas.

This node's decisions count at once, even before their commit. Other nodes' inputs count once the
projection of sessions has read them, some seconds later. So the quota is exact on one node; on
several it can be exceeded by what they accept within those seconds.
"""

from __future__ import annotations

import threading

__all__ = ["InFlightCounter"]


class InFlightCounter:
    """Called by the admission actor and by the projection, on their threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._local: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._total = 0

    @property
    def total(self) -> int:
        return self._total

    def total_with(self, session: str, pending: int) -> int:
        """The realm's total if ``session`` had ``pending`` unfinished inputs."""
        return self._total - self._count(session) + pending

    def set_local(self, session: str, pending: int) -> None:
        """Set a session's count as this node decided or read it."""
        with self._lock:
            self._total += pending - self._count(session)
            self._local[session] = pending

    def set_seen(self, session: str, pending: int) -> None:
        """Set a session's count as the projection read it; this node's own count precedes it."""
        with self._lock:
            before = self._count(session)
            self._seen[session] = pending
            self._total += self._count(session) - before

    def drop_local(self, session: str) -> None:
        """Treat an evicted session's count as seen, until the projection reads a newer one."""
        with self._lock:
            if session in self._local:
                self._seen[session] = self._local.pop(session)

    def _count(self, session: str) -> int:
        local = self._local.get(session)
        return self._seen.get(session, 0) if local is None else local
