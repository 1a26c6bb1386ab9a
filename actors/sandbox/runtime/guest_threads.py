"""Threads that run guests, and the beat that keeps them within their limits.

A thread that stands still in a tool is made up for meanwhile. It can be lost to one that never
returns: it is replaced, and when it comes back after all it finds its work done by somebody else
and ends. The beat stands still while nothing runs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection

from rookery.actors.sandbox.runtime.ticker import TICK_S
from rookery.actors.sandbox.runtime.wasm import THREAD_STACK_BYTES

__all__ = ["GuestThreads"]

_stack_size_lock = threading.Lock()

ThreadWork = Callable[[], None]


class GuestThreads:
    """Up to so many threads at work, made when they are first needed."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._changed = threading.Condition()
        self._queue: deque[ThreadWork] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = self._blocked_count = 0
        self._closed = False

    def submit(self, work: ThreadWork) -> None:
        """``work`` must not raise."""
        with self._changed:
            self._queue.append(work)
            self._provide_threads()

    def replace(self, thread: threading.Thread) -> None:
        """Do without a thread that is stuck; another may take its place."""
        with self._changed:
            self._threads.discard(thread)
            self._provide_threads()

    def allow_extra(self, threads: Collection[threading.Thread]) -> None:
        """These stand still just now, and as many others may work meanwhile. When they go on,
        threads end as they come to the end of what they do, until there are no more than may be."""
        with self._changed:
            self._blocked_count = len(self._threads.intersection(threads))
            self._provide_threads(len(self._queue))
            self._changed.notify(max(self._excess, 0))

    def close(self) -> None:
        """Returns when all threads that are not lost have ended."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        while thread := next(iter(self._threads), None):
            thread.join(TICK_S)
            if not thread.is_alive():
                self._threads.discard(thread)

    @property
    def _excess(self) -> int:
        """How many threads there are beyond those there may be."""
        return len(self._threads) - self._count_max - self._blocked_count

    def _provide_threads(self, count_max: int = 1) -> None:
        if self._queue and self._idle >= len(self._queue):
            self._changed.notify()
        for _ in range(min(count_max, len(self._queue) - self._idle)):
            if self._excess < 0:
                self._threads.add(_big_thread(self._run))

    def _run(self) -> None:
        me = threading.current_thread()
        while (work := self._next_work(me)) is not None:
            work()
            del work

    def _next_work(self, me: threading.Thread) -> ThreadWork | None:
        with self._changed:
            while me in self._threads:
                if self._excess > 0:
                    self._threads.discard(me)
                    self._provide_threads()  # Whoever woke this one up may need another.
                    break
                if self._queue:
                    return self._queue.popleft()
                if self._closed:
                    break
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
        return None


def _big_thread(run: Callable[[], None]) -> threading.Thread:
    """The stack size of threads is a setting of the process: it is changed for a moment only."""
    with _stack_size_lock:
        before = threading.stack_size(THREAD_STACK_BYTES)
        try:
            thread = threading.Thread(target=run, name="sandbox", daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
    return thread
