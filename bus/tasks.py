"""The tasks of one owner, and a wait for the first of some futures; both on the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine
from operator import methodcaller
from typing import Any, TypeVar

__all__ = ["TaskSet", "wait_first"]

T = TypeVar("T")
_is_done = methodcaller("done")


class TaskSet:
    """The tasks that one owner has started and that still run; used on the event loop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def wait_idle(self) -> None:
        """Wait until all tasks have ended, including those started meanwhile."""
        while self._running:
            await asyncio.wait(set(self._running))

    async def cancel(self, reason: str | None = None) -> None:
        """Cancel all tasks and wait for their end."""
        running = set(self._running)
        for task in running:
            task.cancel(reason)
        await asyncio.gather(*running, return_exceptions=True)


async def wait_first(
    futures: Collection[asyncio.Future[Any]], timeout_s: float | None = None
) -> bool:
    """Return once one of the futures is done, or after ``timeout_s``; whether one is done. It
    raises nothing of theirs.

    A call of a tool waits a few times: this costs a third of ``asyncio.wait``.
    """
    for future in futures:
        if future.done():
            return True
    loop = next(iter(futures)).get_loop()
    woken = loop.create_future()

    def wake(_: object = None) -> None:
        if not woken.done():
            woken.set_result(None)

    timer = None if timeout_s is None else loop.call_later(timeout_s, wake)
    for future in futures:
        future.add_done_callback(wake)
    try:
        await woken
    finally:
        if timer is not None:
            timer.cancel()
        for future in futures:
            future.remove_done_callback(wake)
    return any(map(_is_done, futures))
