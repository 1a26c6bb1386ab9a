"""The call notifier: drivers wait for the progress of calls, and running calls learn that their run
is ending.

In memory, per node, used on the bus loop. Everything it carries is committed too: a driver that
missed a notification queries the actor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import UNSET

from rookery.actors.messages import CallProgress

__all__ = ["CallNotifier"]


class CallNotifier:
    """One per node."""

    def __init__(self) -> None:
        self._futures: dict[str, asyncio.Future[CallProgress]] = {}
        self._cancels: dict[str, list[tuple[str, Callable[[], None]]]] = {}
        self._dropped: set[str] = set()

    def future(self, operation_id: str) -> asyncio.Future[CallProgress]:
        """The next progress of the call. Create the future before the call is committed: the
        notifier drops progress without one."""
        future = self._futures.get(operation_id)
        if future is None or future.done():
            future = asyncio.get_running_loop().create_future()
            self._futures[operation_id] = future
            future.add_done_callback(lambda future: self._remove(operation_id, future))
        return future

    def pass_unrecorded(self, progress: CallProgress) -> asyncio.Future[CallProgress] | None:
        """Pass an outcome that is not recorded yet to the waiting driver, which records it with its
        next step. The future is done once the outcome is committed; ``None``: no driver waits."""
        future = self._futures.get(progress.operation_id)
        if future is None or future.done():
            return None
        future.set_result(progress)
        return self.future(progress.operation_id)

    def notify(self, progress: CallProgress) -> None:
        """The call has ended, or waits for an approver or operator."""
        if progress.outcome is not UNSET:
            self._dropped.discard(progress.operation_id)
        future = self._futures.get(progress.operation_id)
        if future is not None and not future.done():
            future.set_result(progress)

    def cancel_run(self, run_id: str) -> None:
        """Cancel the run's running calls. Their outcomes are still committed."""
        for _, cancel in tuple(self._cancels.get(run_id, ())):
            cancel()

    def drop(self, run_id: str, operation_id: str) -> None:
        """Cancel a call the program no longer waits for; if it has not begun, it does not begin."""
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
        """Call ``cancel`` if the run ends or drops the call within this scope."""
        cancels, entry = self._cancels.setdefault(run_id, []), (operation_id, cancel)
        cancels.append(entry)
        try:
            yield
        finally:
            cancels.remove(entry)
            if not cancels:
                self._cancels.pop(run_id, None)

    def _remove(self, operation_id: str, future: asyncio.Future[CallProgress]) -> None:
        if self._futures.get(operation_id) is future:
            del self._futures[operation_id]
