"""The call notifier: drivers wait for the progress of calls, and running calls learn that their run
is ending.

In memory, per node, used on the bus loop. Everything it carries is committed too: a driver that
missed a notification queries the actor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from msgspec import UNSET

from rookery.actors.messages import CallProgress
from rookery.bus.ports import wait_first

__all__ = ["CallNotifier"]

RECORD_ALONE_S: Final = 0.005
"""How long a driver may take to record an outcome with its next step."""
RESUME_TURNS: Final = 8
"""Turns of a busy loop from an outcome to the step that continues with it, and some more."""


class CallNotifier:
    """One per node."""

    def __init__(self) -> None:
        self._futures: dict[str, asyncio.Future[CallProgress]] = {}
        self._steps: dict[str, asyncio.Future[None]] = {}
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

    def begin_step(self, operation_ids: Iterable[str]) -> asyncio.Future[None]:
        """A driver commits a step with the outcomes of these calls from now on, until it resolves
        the future, whether the step is committed or not."""
        step = asyncio.get_running_loop().create_future()
        ids = tuple(operation_ids)
        self._steps.update(dict.fromkeys(ids, step))
        step.add_done_callback(lambda _: self._end_step(ids))
        return step

    async def is_recorded(self, operation_id: str, recorded: asyncio.Future[CallProgress]) -> bool:
        """Whether the driver's next step records the outcome. A busy loop may resume the program
        late, and commit its step later still: then a second record would only add to the load."""
        await wait_first((recorded,), RECORD_ALONE_S)
        step = self._steps.get(operation_id)
        for _ in range(RESUME_TURNS):
            if step is not None or recorded.done():
                break
            await asyncio.sleep(0)
            step = self._steps.get(operation_id)
        if step is not None:
            await wait_first((recorded, step))
        # A driver that has begun meanwhile waits for the same future, and may cancel it.
        return recorded.done() and not recorded.cancelled()

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

    def _end_step(self, operation_ids: Iterable[str]) -> None:
        for operation_id in operation_ids:
            self._steps.pop(operation_id, None)

    def _remove(self, operation_id: str, future: asyncio.Future[CallProgress]) -> None:
        if self._futures.get(operation_id) is future:
            del self._futures[operation_id]
