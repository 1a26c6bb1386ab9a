"""An actor's mailbox: a queue with at most one wake-up under way.

Telling a pykka actor costs some microseconds; telling it once a batch makes that disappear.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container
from typing import Any

import pykka

__all__ = ["InFlightLimit", "Mailbox"]

REQUESTS_MAX = 16_384
REQUESTS_BYTES_MAX = 64 << 20


class InFlightLimit:
    """How many requests from the door one actor may have on its hands, from their arrival to their
    end. They are let in on the loop and end on the actor's thread: each side keeps numbers of its
    own, so neither needs a lock. What the inbox brings has bounds there, and what the node itself
    has to do always has room."""

    def __init__(self) -> None:
        self._entered = self._entered_bytes = 0
        self._exited = self._exited_bytes = 0

    def try_enter(self, size_bytes: int) -> bool:
        """Let a request in, if there is room."""
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
        """A request that was let in has come to its end."""
        self._exited += 1
        self._exited_bytes += size_bytes


class Mailbox:
    """Anybody posts, one actor drains. It outlives the actor, whose successor goes on with it."""

    def __init__(self) -> None:
        self._items: deque[object] = deque()
        self._woken = False
        self.in_flight_limit = InFlightLimit()
        self._actor: pykka.ActorRef[Any] | None = None
        self.entities: Container[str] = ()
        """The keys its actor has in memory. Who is not among them reads the journal first."""

    def __len__(self) -> int:
        return len(self._items)

    def attach(self, actor: pykka.ActorRef[Any]) -> None:
        """Wake this actor from now on, and at once if something is waiting already."""
        self._actor = actor
        self._woken = False
        self.in_flight_limit = (
            InFlightLimit()
        )  # What the last one had on its hands is lost with it.
        if self._items:
            self._wake()

    def post(self, item: object) -> None:
        """Leave ``item`` for the actor. Callable from any thread."""
        self._items.append(item)
        if not self._woken:
            self._wake()

    def drain(self) -> list[object]:
        """Everything posted so far. Called by the actor when it was woken."""
        self._woken = False  # Before taking: what is posted from here on wakes the actor again.
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
            self._woken = False  # Its successor is woken by ``attach``.
