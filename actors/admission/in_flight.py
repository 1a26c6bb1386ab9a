"""How many inputs the realm owes an end, as one node sees it: the load its quotas look at.

What this node decided counts at once, drafts included; what other nodes did counts when the view
of all sessions has seen it, some seconds later. So the quota is exact on one node, and on several
it may be overshot by what they accept within those seconds.
"""

from __future__ import annotations

import threading

__all__ = ["InFlightCounter"]


class InFlightCounter:
    """Told by the admission actor and by the view, from their threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._local: dict[str, int] = {}
        self._seen: dict[str, int] = {}
        self._total = 0

    @property
    def total(self) -> int:
        return self._total

    def total_with(self, session: str, owed: int) -> int:
        """The total, should ``session`` owe so many."""
        return self._total - self._count(session) + owed

    def set_local(self, session: str, owed: int) -> None:
        """This node has decided, or read, that the session owes so many."""
        with self._lock:
            self._total += owed - self._count(session)
            self._local[session] = owed

    def set_seen(self, session: str, owed: int) -> None:
        """The journal says so; this node's own word is newer where there is one."""
        with self._lock:
            before = self._count(session)
            self._seen[session] = owed
            self._total += self._count(session) - before

    def drop_local(self, session: str) -> None:
        """The session has left this node's memory: its word stands until the view knows more."""
        with self._lock:
            if session in self._local:
                self._seen[session] = self._local.pop(session)

    def _count(self, session: str) -> int:
        own = self._local.get(session)
        return self._seen.get(session, 0) if own is None else own
