"""The event loop of a process's bus: its thread, the tasks of an owner, and pauses between
attempts.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine
from operator import methodcaller
from typing import Any, TypeVar

__all__ = [
    "Backoff",
    "LoopThread",
    "TaskSet",
    "new_event_loop",
    "wait_first",
]

# --- backoff --------------------------------------------------------------------------------------

# The pause between attempts that grows up to a maximum.


class Backoff:
    """A pause of ``first_s`` that is multiplied after each attempt, up to ``last_s``."""

    def __init__(self, first_s: float, last_s: float, *, growth: float = 2.0) -> None:
        self.pause_s = first_s
        self._first_s, self._last_s, self._growth = first_s, last_s, growth

    def next_s(self) -> float:
        """The pause to make now; the one after it is longer."""
        pause_s = self.pause_s
        self.pause_s = min(self._growth * pause_s, self._last_s)
        return pause_s

    def reset(self) -> None:
        """Begin with ``first_s`` again."""
        self.pause_s = self._first_s


# --- tasks ----------------------------------------------------------------------------------------

# The tasks of one owner, and a wait for the first of some futures; both on the event loop.


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


# --- loop thread ----------------------------------------------------------------------------------

# Actors are threads and the bus is asyncio; they meet here only. Actors hand batches to the loop
# with ``call_soon``. The loop never waits for an actor; only callers outside wait (``run``).


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it installs (a third less latency a hop), else the standard loop."""
    try:
        import uvloop  # noqa: PLC0415 - optional by platform.
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class LoopThread:
    """A running event loop that other threads can hand work to."""

    def __init__(self, name: str = "rookery-bus") -> None:
        self.loop = new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def call_soon(self, call: Callable[..., object], *args: object) -> None:
        """Schedule a call on the loop. After ``close`` the call is dropped."""
        try:
            if threading.current_thread() is self._thread:
                self.loop.call_soon(call, *args)
            else:
                self.loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run ``work`` on the loop and wait for it. Never call this on the loop itself."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("run() on the loop's own thread would wait for ever")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel running tasks, stop the loop and join its thread."""
        if self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
