"""``InFlightCounter``: the realm's unfinished inputs as one node sees them, for its quotas.

This node's decisions count at once, even before their commit. Other nodes' inputs count once the
projection of sessions has read them, some seconds later. So the quota is exact on one node; on
several it can be exceeded by what they accept within those seconds.

The processes of one node divide the quota by their partitions (``InFlightShare``), so it is exact
over them, too. The price: a process refuses a run when its share is used up, although another one
may have room.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection
from typing import NamedTuple

__all__ = ["InFlightCounter", "InFlightLoad", "InFlightShare"]


class InFlightLoad(NamedTuple):
    """A count of unfinished inputs and its limit."""

    in_flight: int
    limit: int
    counted: str = "the realm"
    """Whose inputs these are."""


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

    def load(self, session: str, pending: int, limit: int) -> InFlightLoad:
        """The load against the realm's ``limit``, if ``session`` had ``pending`` inputs."""
        return InFlightLoad(self.total_with(session, pending), limit)

    def set_local(self, session: str, pending: int) -> None:
        """Set a session's count as this node decided or read it."""
        with self._lock:
            self._add(session, pending - self._count(session))
            self._local[session] = pending

    def set_seen(self, session: str, pending: int) -> None:
        """Set a session's count as the projection read it; this node's own count precedes it."""
        with self._lock:
            before = self._count(session)
            self._seen[session] = pending
            self._add(session, self._count(session) - before)

    def drop_local(self, session: str) -> None:
        """Treat an evicted session's count as seen, until the projection reads a newer one."""
        with self._lock:
            if session in self._local:
                self._seen[session] = self._local.pop(session)

    def _add(self, session: str, change: int) -> None:
        del session
        self._total += change

    def _count(self, session: str) -> int:
        local = self._local.get(session)
        return self._seen.get(session, 0) if local is None else local


class InFlightShare(InFlightCounter):
    """The counter of one of several processes: its partitions' share of the quota is its own."""

    def __init__(
        self,
        partition_of: Callable[[str], int],
        owned: Callable[[], Collection[int]],
        partitions: int,
    ) -> None:
        """``owned``: the partitions of this process now."""
        super().__init__()
        self._partition_of, self._owned, self._partitions = partition_of, owned, partitions
        self._by_partition: Counter[int] = Counter()

    def load(self, session: str, pending: int, limit: int) -> InFlightLoad:
        owned = self._owned()
        if self._partition_of(session) not in owned:  # It just went to another process.
            return super().load(session, pending, limit)
        share = limit * len(owned) // self._partitions
        own = sum(self._by_partition[partition] for partition in owned)
        own += pending - self._count(session)
        if own >= share:
            return InFlightLoad(own, share, "this process of the node")
        return super().load(session, pending, limit)

    def _add(self, session: str, change: int) -> None:
        super()._add(session, change)
        self._by_partition[self._partition_of(session)] += change
