"""The call board: where runners wait for their calls, and calls hear that their run is to end.

In memory, of one node, used on the loop. What is told here stands in the journal: whoever was not
there to hear it asks the actor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import UNSET

from rookery.actors.messages import CallProgress

__all__ = ["CallNotifier"]


class CallNotifier:
    """One a node."""

    def __init__(self) -> None:
        self._futures: dict[str, asyncio.Future[CallProgress]] = {}
        self._cancels: dict[str, list[tuple[str, Callable[[], None]]]] = {}
        self._dropped: set[str] = set()

    def future(self, operation_id: str) -> asyncio.Future[CallProgress]:
        """What is told of the call next. Expect it before it is put on record: what nobody expects
        is told to nobody."""
        expected = self._futures.get(operation_id)
        if expected is None or expected.done():
            expected = asyncio.get_running_loop().create_future()
            self._futures[operation_id] = expected
            expected.add_done_callback(lambda told: self._forget(operation_id, told))
        return expected

    def notify(self, known: CallProgress) -> None:
        """The call has come to something, or waits for somebody."""
        if known.outcome is not UNSET:
            self._dropped.discard(known.operation_id)
        expected = self._futures.get(known.operation_id)
        if expected is not None and not expected.done():
            expected.set_result(known)

    def cancel_run(self, run_id: str) -> None:
        """Ask what is in flight for the run to stop. What it comes to is put on record."""
        for _, cancel in tuple(self._cancels.get(run_id, ())):
            cancel()

    def drop(self, run_id: str, operation_id: str) -> None:
        """Nobody waits for the call any more: it is not to begin, or to stop."""
        self._dropped.add(operation_id)
        for operation, cancel in tuple(self._cancels.get(run_id, ())):
            if operation == operation_id:
                cancel()

    def is_dropped(self, operation_id: str) -> bool:
        return operation_id in self._dropped

    @contextmanager
    def cancel_scope(
        self, run_id: str, operation_id: str, cancel: Callable[[], None]
    ) -> Iterator[None]:
        """Call ``cancel`` if the run is to end meanwhile, or goes on without the call."""
        cancels, entry = self._cancels.setdefault(run_id, []), (operation_id, cancel)
        cancels.append(entry)
        try:
            yield
        finally:
            cancels.remove(entry)
            if not cancels:
                self._cancels.pop(run_id, None)

    def _forget(self, operation_id: str, told: asyncio.Future[CallProgress]) -> None:
        if self._futures.get(operation_id) is told:
            del self._futures[operation_id]
