"""The order of work in a session: one job at a time, however many threads there are.

Owns the queue of every session and the claim on a job's end, which exactly one of two may make:
the thread that works on it, or the beat that finds the job's time over while a tool keeps that
thread. What a job does is ``session_work``'s.
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
    """Something to be done in a session, and the promise of what comes of it."""

    def __init__(self, work: SessionJobWork) -> None:
        self.work = work
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()  # It ends by what the run comes to, only.
        self.thread: threading.Thread | None = None
        self.cancelled = False
        self._guest_run: GuestRun | None = None
        self._owner: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def guest_run(self) -> GuestRun | None:
        return self._guest_run

    @guest_run.setter
    def guest_run(self, turn: GuestRun) -> None:
        self._guest_run = turn
        turn.cancelled |= self.cancelled

    def cancel(self) -> None:
        self.cancelled = True
        if self._guest_run is not None:
            self._guest_run.cancelled = True

    def own_result(self) -> bool:
        """Whether the end of this job is this thread's to make."""
        with self._lock:
            self._owner = self._owner or threading.current_thread()
            return self._owner is threading.current_thread()

    def finish(self, value: object) -> None:
        if self.own_result():
            self.future.set_result(value)


SessionJobWork = Callable[[SessionJob], None]
"""It gives its job's future a result, once it has claimed the end."""


class SessionQueue:
    """The jobs of one session, in order."""

    def __init__(self, session: Session | None) -> None:
        self.session = session
        self.waiting: deque[SessionJob] = deque()
        self.running: SessionJob | None = None

    def cancel(self) -> None:
        """The job at work, and those that wait for it."""
        for job in (self.running, *self.waiting):
            if job is not None:
                job.cancel()


class SessionQueues:
    """All lanes of a sandbox over one set of threads."""

    def __init__(self, workers: GuestThreads) -> None:
        self._threads = workers
        self._lock = threading.Lock()
        self._running: dict[SessionJob, SessionQueue] = {}

    def submit(self, lane: SessionQueue, work: SessionJobWork) -> Future[Any]:
        job = SessionJob(work)
        with self._lock:
            lane.waiting.append(job)
            self._start_next(lane)
        return job.future

    def running(self) -> list[tuple[SessionJob, SessionQueue]]:
        with self._lock:
            return list(self._running.items())

    def detach(self, job: SessionJob) -> None:
        """The job's thread is stuck in it: its lane goes on without."""
        if job.thread is not None:
            self._threads.replace(job.thread)
        self._on_done(job)

    def _start_next(self, lane: SessionQueue) -> None:
        if lane.running is None and lane.waiting:
            job = lane.running = lane.waiting.popleft()
            self._running[job] = lane
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
            lane = self._running.pop(job, None)
            if lane is not None:
                lane.running = None
                self._start_next(lane)
