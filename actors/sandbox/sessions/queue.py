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

from rookery.actors.sandbox.runtime.guest_threads import Workers
from rookery.actors.sandbox.sessions.guest_run import Turn
from rookery.actors.sandbox.sessions.session import Session

__all__ = ["Job", "JobWork", "Lane", "Lanes"]


class Job:
    """Something to be done in a session, and the promise of what comes of it."""

    def __init__(self, work: JobWork) -> None:
        self.work = work
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()  # It ends by what the run comes to, only.
        self.thread: threading.Thread | None = None
        self.cancelled = False
        self._turn: Turn | None = None
        self._owner: threading.Thread | None = None
        self._lock = threading.Lock()

    @property
    def turn(self) -> Turn | None:
        return self._turn

    @turn.setter
    def turn(self, turn: Turn) -> None:
        self._turn = turn
        turn.cancelled |= self.cancelled

    def cancel(self) -> None:
        self.cancelled = True
        if self._turn is not None:
            self._turn.cancelled = True

    def claim(self) -> bool:
        """Whether the end of this job is this thread's to make."""
        with self._lock:
            self._owner = self._owner or threading.current_thread()
            return self._owner is threading.current_thread()

    def finish(self, value: object) -> None:
        if self.claim():
            self.future.set_result(value)


JobWork = Callable[[Job], None]
"""It gives its job's future a result, once it has claimed the end."""


class Lane:
    """The jobs of one session, in order."""

    def __init__(self, session: Session | None) -> None:
        self.session = session
        self.waiting: deque[Job] = deque()
        self.running: Job | None = None

    def cancel(self) -> None:
        """The job at work, and those that wait for it."""
        for job in (self.running, *self.waiting):
            if job is not None:
                job.cancel()


class Lanes:
    """All lanes of a sandbox over one set of threads."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._lock = threading.Lock()
        self._running: dict[Job, Lane] = {}

    def submit(self, lane: Lane, work: JobWork) -> Future[Any]:
        job = Job(work)
        with self._lock:
            lane.waiting.append(job)
            self._next(lane)
        return job.future

    def running(self) -> list[tuple[Job, Lane]]:
        with self._lock:
            return list(self._running.items())

    def lose(self, job: Job) -> None:
        """The job's thread is stuck in it: its lane goes on without."""
        if job.thread is not None:
            self._workers.lose(job.thread)
        self._done(job)

    def _next(self, lane: Lane) -> None:
        if lane.running is None and lane.waiting:
            job = lane.running = lane.waiting.popleft()
            self._running[job] = lane
            self._workers.submit(lambda: self._run(job))

    def _run(self, job: Job) -> None:
        job.thread = threading.current_thread()
        try:
            job.work(job)
        except BaseException as error:
            if job.claim() and not job.future.done():
                job.future.set_exception(error)
        self._done(job)

    def _done(self, job: Job) -> None:
        with self._lock:
            lane = self._running.pop(job, None)
            if lane is not None:
                lane.running = None
                self._next(lane)
