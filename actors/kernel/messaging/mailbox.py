"""``Mailbox``: an actor's queue, with at most one pykka wake-up in flight.

A pykka ``tell`` costs several microseconds; one per batch instead of one per message makes that
negligible.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Any

import pykka

__all__ = ["InFlightLimit", "Mailbox"]

REQUESTS_MAX = 16_384
REQUESTS_BYTES_MAX = 64 << 20


class InFlightLimit:
    """Limits the requests that one actor has accepted and not finished. Requests enter on the loop
    and exit in the actor's handler; each side has counters of its own, so no lock is needed. Inbox
    commands have a limit in the inbox, and the node's own commands have none."""

    def __init__(self) -> None:
        self._entered = self._entered_bytes = 0
        self._exited = self._exited_bytes = 0

    def try_enter(self, size_bytes: int) -> bool:
        """Accept a request, if the limit allows."""
        waiting, waiting_bytes = (
            self._entered - self._exited,
            self._entered_bytes - self._exited_bytes,
        )
        if waiting >= REQUESTS_MAX or waiting_bytes >= REQUESTS_BYTES_MAX:
            return False
        self._entered += 1
        self._entered_bytes += size_bytes
        return True

    def exit(self, size_bytes: int) -> None:
        """Count an accepted request as finished."""
        self._exited += 1
        self._exited_bytes += size_bytes


class Mailbox:
    """Many threads post, one actor drains. The mailbox outlives an actor that fails and serves its
    successor."""

    def __init__(self) -> None:
        self._items: deque[object] = deque()
        self._woken = False
        self.in_flight_limit = InFlightLimit()
        self._actor: pykka.ActorRef[Any] | None = None
        self.entities: Collection[str] = ()
        """The keys that the actor holds in memory."""

    def __len__(self) -> int:
        return len(self._items)

    def attach(self, actor: pykka.ActorRef[Any]) -> None:
        """Wake this actor from now on, at once if messages are waiting."""
        self._actor = actor
        self._woken = False
        self.in_flight_limit = InFlightLimit()  # The previous actor's requests are lost with it.
        if self._items:
            self._wake()

    def post(self, item: object) -> None:
        """Append ``item`` and wake the actor. Any thread."""
        self._items.append(item)
        if not self._woken:
            self._wake()

    def post_quietly(self, item: object) -> None:
        """Append ``item`` for the actor's next wake. Any thread."""
        self._items.append(item)

    def drain(self) -> list[object]:
        """Remove and return everything posted so far; the woken actor calls it."""
        self._woken = False  # Cleared before draining, so that a later post wakes the actor again.
        items = []
        while self._items:
            items.append(self._items.popleft())
        return items

    def _wake(self) -> None:
        if self._actor is None:
            return
        self._woken = True
        try:
            self._actor.tell(None)
        except pykka.ActorDeadError:
            self._woken = False  # ``attach`` wakes the successor.
