"""The queue of jobs of each session: one job runs at a time.

Exactly one thread may set the result of a job: the thread that executes it, or the watchdog, when
the job's time is over while its thread is blocked in a tool.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from rookery.actors.sandbox.runtime.guest_threads import GuestThreads
from rookery.actors.sandbox.sessions.guest_run import GuestRun
from rookery.actors.sandbox.sessions.session import Session

__all__ = ["SessionJob", "SessionJobWork", "SessionQueue", "SessionQueues"]


class SessionJob:
    """A job of a session and the future of its result."""

    def __init__(self, work: SessionJobWork) -> None:
        self.work = work
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()  # Only its run ends it.
        self.thread: threading.Thread | None = None
        self.cancelled = False
        self._guest_run: GuestRun | None = None
        self._owner: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def guest_run(self) -> GuestRun | None:
        return self._guest_run

    @guest_run.setter
    def guest_run(self, run: GuestRun) -> None:
        self._guest_run = run
        run.cancelled |= self.cancelled

    def cancel(self) -> None:
        self.cancelled = True
        if self._guest_run is not None:
            self._guest_run.cancelled = True

    def own_result(self) -> bool:
        """Whether this thread may set the result; the first thread that calls this may."""
        with self._lock:
            self._owner = self._owner or threading.current_thread()
            return self._owner is threading.current_thread()

    def finish(self, value: object) -> None:
        if self.own_result():
            self.future.set_result(value)


SessionJobWork = Callable[[SessionJob], None]
"""The function of a job; it sets the future's result if ``own_result`` is true."""


class SessionQueue:
    """The jobs of one session, in order."""

    def __init__(self, session: Session | None) -> None:
        self.session = session
        self.waiting: deque[SessionJob] = deque()
        self.running: SessionJob | None = None

    def cancel(self) -> None:
        """Cancel the running job and the waiting ones."""
        for job in (self.running, *self.waiting):
            if job is not None:
                job.cancel()


class SessionQueues:
    """All queues of a sandbox over one set of threads."""

    def __init__(self, workers: GuestThreads) -> None:
        self._threads = workers
        self._lock = threading.Lock()
        self._running: dict[SessionJob, SessionQueue] = {}

    def submit(self, queue: SessionQueue, work: SessionJobWork) -> Future[Any]:
        job = SessionJob(work)
        with self._lock:
            queue.waiting.append(job)
            self._start_next(queue)
        return job.future

    def running(self) -> list[tuple[SessionJob, SessionQueue]]:
        with self._lock:
            return list(self._running.items())

    def detach(self, job: SessionJob) -> None:
        """Replace the thread of a stuck job, and start the next job of its queue."""
        if job.thread is not None:
            self._threads.replace(job.thread)
        self._on_done(job)

    def _start_next(self, queue: SessionQueue) -> None:
        if queue.running is None and queue.waiting:
            job = queue.running = queue.waiting.popleft()
            self._running[job] = queue
            self._threads.submit(lambda: self._run(job))

    def _run(self, job: SessionJob) -> None:
        job.thread = threading.current_thread()
        try:
            job.work(job)
        except BaseException as error:
            if job.own_result() and not job.future.done():
                job.future.set_exception(error)
        self._on_done(job)

    def _on_done(self, job: SessionJob) -> None:
        with self._lock:
            queue = self._running.pop(job, None)
            if queue is not None:
                queue.running = None
                self._start_next(queue)
