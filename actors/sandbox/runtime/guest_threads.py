"""The threads that run guests, and the one that ticks."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection

from rookery.actors.sandbox.runtime.wasm import THREAD_STACK_BYTES

__all__ = [
    "TICK_S",
    "GuestThreads",
    "Ticker",
]

# --- ticker ---------------------------------------------------------------------------------------

# A thread that calls a function at a steady pace.


TICK_S = 0.005
_IDLE_TICKS_MAX = 4
"""To wake the thread costs as much as these."""


class Ticker:
    """Calls ``tick`` two hundred times a second, from ``wake`` until it has returned false a few
    times."""

    def __init__(self, tick: Callable[[], bool]) -> None:
        self._tick = tick
        self._awake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="sandbox-beat", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        if not self._awake.is_set():  # To set it again would cost five times as much.
            self._awake.set()

    def close(self) -> None:
        self._stop.set()
        self._awake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._awake.wait()
            self._awake.clear()
            idle_ticks = 0
            while idle_ticks < _IDLE_TICKS_MAX and not self._stop.wait(TICK_S):
                idle_ticks = 0 if self._tick() else idle_ticks + 1


# --- guest threads --------------------------------------------------------------------------------

# While a thread is blocked in a tool, an extra thread may run. If the tool never returns, the
# thread is replaced; if it returns after that, the thread exits.


_stack_size_lock = threading.Lock()

ThreadWork = Callable[[], None]


class GuestThreads:
    """Up to ``count_max`` threads at work, started when needed."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._changed = threading.Condition()
        self._queue: deque[ThreadWork] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = self._blocked_count = 0
        self._closed = False

    @property
    def is_current(self) -> bool:
        """Whether the calling thread is one of these."""
        return threading.current_thread() in self._threads

    def submit(self, work: ThreadWork) -> None:
        """``work`` must not raise."""
        with self._changed:
            self._queue.append(work)
            self._provide_threads()

    def replace(self, thread: threading.Thread) -> None:
        """Release a thread that is stuck; another may be started instead."""
        with self._changed:
            self._threads.discard(thread)
            self._provide_threads()

    def allow_extra(self, threads: Collection[threading.Thread]) -> None:
        """Allow one extra thread for each of these blocked ones. When these continue, threads exit
        after their present work until the limit holds again."""
        with self._changed:
            self._blocked_count = len(self._threads.intersection(threads))
            self._provide_threads(len(self._queue))
            self._changed.notify(max(self._excess, 0))

    def close(self) -> None:
        """Wait until all threads have ended, except for replaced ones."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        while thread := next(iter(self._threads), None):
            thread.join(TICK_S)
            if not thread.is_alive():
                self._threads.discard(thread)

    @property
    def _excess(self) -> int:
        """The number of threads above the limit."""
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
                    self._provide_threads()  # The work that woke this thread may need another.
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
    """Start a thread with a large stack. The stack size is a setting of the process."""
    with _stack_size_lock:
        before = threading.stack_size(THREAD_STACK_BYTES)
        try:
            thread = threading.Thread(target=run, name="sandbox", daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
    return thread
