"""Threads that run guests, and the beat that keeps them within their limits.

A thread can be lost to a tool that never returns: it is replaced, and when it comes back after all
it finds its work done by somebody else and ends. The beat stands still while nothing runs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from rookery.actors.sandbox.wasm import THREAD_STACK_BYTES

__all__ = ["Beat", "Workers"]

_BEAT_S = 0.01
_making_threads = threading.Lock()

Work = Callable[[], None]


class Workers:
    """Up to so many threads, made when they are first needed."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._changed = threading.Condition()
        self._todo: deque[Work] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False

    def submit(self, work: Work) -> None:
        """``work`` must not raise."""
        with self._changed:
            self._todo.append(work)
            self._provide_threads()

    def lose(self, thread: threading.Thread) -> None:
        """Do without a thread that is stuck; another may take its place."""
        with self._changed:
            self._threads.discard(thread)
            self._provide_threads()

    def close(self) -> None:
        """Returns when all threads that are not lost have ended."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        while thread := next(iter(self._threads), None):
            thread.join(_BEAT_S)
            if not thread.is_alive():
                self._threads.discard(thread)

    def _provide_threads(self) -> None:
        if self._idle >= len(self._todo):
            self._changed.notify()
        elif len(self._threads) < self._count_max:
            self._threads.add(_big_thread(self._run))

    def _run(self) -> None:
        me = threading.current_thread()
        while (work := self._next_work(me)) is not None:
            work()
            del work

    def _next_work(self, me: threading.Thread) -> Work | None:
        with self._changed:
            while me in self._threads:
                if self._todo:
                    return self._todo.popleft()
                if self._closed:
                    break
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
        return None


class Beat:
    """Calls ``strike`` a hundred times a second while there is something to watch."""

    def __init__(self, strike: Callable[[], bool]) -> None:
        self._strike = strike
        self._wanted, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="sandbox-beat", daemon=True)
        self._thread.start()

    def want(self) -> None:
        self._wanted.set()

    def close(self) -> None:
        self._stop.set()
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wanted.wait()
            self._wanted.clear()
            while not self._stop.wait(_BEAT_S) and self._strike():
                pass


def _big_thread(run: Callable[[], None]) -> threading.Thread:
    """The stack size of threads is a setting of the process: it is changed for a moment only."""
    with _making_threads:
        before = threading.stack_size(THREAD_STACK_BYTES)
        try:
            thread = threading.Thread(target=run, name="sandbox", daemon=True)
            thread.start()
        finally:
            threading.stack_size(before)
    return thread
