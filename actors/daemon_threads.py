"""Daemon threads for functions that block and may never return.

``DaemonThreadPool`` is like ``ThreadPoolExecutor``, but a hanging function does not prevent the
process from ending.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import ParamSpec, TypeVar

__all__ = ["DaemonThreadPool", "run_on_own_thread"]

P = ParamSpec("P")
T = TypeVar("T")


class DaemonThreadPool(Executor):
    """Up to a number of daemon threads, started when needed."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._changed = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        self._count = self._idle = 0
        self._closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def job() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # The future carries every exception.
                future.set_exception(error)
            else:
                future.set_result(result)

        with self._changed:
            if self._closed:
                raise RuntimeError("the thread pool was shut down")
            self._jobs.append(job)
            if self._idle < len(self._jobs) and self._count < self._count_max:
                self._count += 1
                threading.Thread(target=self._run_jobs, name="rookery-tool", daemon=True).start()
            self._changed.notify()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Refuse new work. The threads end after the accepted work; this does not wait for them."""
        del wait, cancel_futures
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run_jobs(self) -> None:
        while (job := self._next_job()) is not None:
            job()
            del job

    def _next_job(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._jobs:
                if self._closed:
                    return None
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            return self._jobs.popleft()


async def run_on_own_thread(work: Callable[[], T]) -> T:
    """Run on a thread of its own, so that a silent name server does not occupy a shared one."""
    done: Future[T] = Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, name="rookery-io", daemon=True).start()
    return await asyncio.wrap_future(done)
