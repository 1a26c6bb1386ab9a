"""``LoopActor``: a pykka actor that runs on the bus's event loop instead of a thread of its own.

A hand-over to a thread and back costs five switches, which is more than a decision. So a message is
handled on the loop, in the next turn of the loop after it was sent. Reference, registry, ``tell``,
``ask``, failure and stop are pykka's; only the inbox and the place where it is emptied are ours.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import pykka

__all__ = ["LoopActor"]


class LoopInbox:
    """pykka's inbox; ``get`` raises ``IndexError`` instead of waiting."""

    def __init__(self) -> None:
        self._envelopes: deque[Any] = deque()
        self.get = self._envelopes.popleft
        self.on_put: Callable[[], None] = lambda: None

    def put(self, envelope: Any, /) -> None:
        self._envelopes.append(envelope)
        self.on_put()

    def empty(self) -> bool:
        return not self._envelopes


class LoopActor(pykka.Actor):
    """One message at a time, on the loop, and never inside the handler of another actor."""

    def __init__(self, run_soon: Callable[[Callable[[], None]], None]) -> None:
        """``run_soon`` schedules a call on the loop, from any thread."""
        super().__init__()
        self._run_soon = run_soon
        self._is_scheduled = False

    @staticmethod
    def _create_actor_inbox() -> LoopInbox:
        return LoopInbox()

    @staticmethod
    def _create_future() -> pykka.Future[Any]:
        return pykka.ThreadingFuture()

    def _start_actor_loop(self) -> None:
        self._actor_loop_setup()
        assert isinstance(self.actor_inbox, LoopInbox)
        self.actor_inbox.on_put = self._schedule
        if not self.actor_inbox.empty():
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._run_soon(self._handle_all)

    def _handle_all(self) -> None:
        """Handle what the inbox holds; pykka's own loop returns when the actor has stopped."""
        self._is_scheduled = False  # Cleared first, so that a later message is scheduled again.
        try:
            self._actor_loop_running()
        except IndexError:
            return  # The inbox is empty; pykka catches what a handler raises.
        self._actor_loop_teardown()
