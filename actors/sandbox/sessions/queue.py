"""The sessions of a sandbox, live and suspended, and the queue of jobs of each."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal

from rookery.actors.sandbox.contract import Pause, PendingResult
from rookery.actors.sandbox.runtime.guest_threads import GuestThreads
from rookery.actors.sandbox.sessions.guest_run import GuestRun
from rookery.actors.sandbox.sessions.session import Session
from rookery.schemas.errors import Refused

__all__ = [
    "SessionJob",
    "SessionJobWork",
    "SessionQueue",
    "SessionQueues",
    "SessionRegistry",
]

# --- queue ----------------------------------------------------------------------------------------

# The queue of jobs of each session: one job runs at a time.
#
# A job that pauses leaves its thread. When the result it waits for comes, the thread that brings it
# continues the job, if that is the job's home, until the guest has used up its slice; otherwise a
# thread of guests does. Only one of the job's own work and the watchdog sets its result.


JobSteps = Generator[Pause, None, None]


class SessionJob:
    """A job of a session and the future of its result."""

    def __init__(self, work: SessionJobWork, *, runs: bool, home: int | None) -> None:
        """``runs``: it executes a program. ``home`` identifies a thread that may execute slices of
        the job, and must not be blocked."""
        self.work, self.runs, self.home = work, runs, home
        self.future: Future[Any] = Future()
        self.future.set_running_or_notify_cancel()  # Only its run ends it.
        self.thread: threading.Thread | None = None
        self.cancelled = False
        self.waits_for: PendingResult | None = None
        """The result that the job waits for without a thread."""
        self._steps: JobSteps | None = None
        self._guest_run: GuestRun | None = None
        self._is_at_home = False
        self._owner: Literal["", "work", "watchdog"] = ""
        self._lock = threading.Lock()

    @property
    def guest_run(self) -> GuestRun | None:
        return self._guest_run

    @guest_run.setter
    def guest_run(self, run: GuestRun) -> None:
        self._guest_run = run
        run.cancelled |= self.cancelled
        run.pauses_at_tick = self._is_at_home

    def enter(self) -> bool:
        """Mark this thread as the one that takes the steps; returns whether it is the home."""
        self.thread = threading.current_thread()
        self._is_at_home = self.thread.ident == self.home
        if self._guest_run is not None:
            self._guest_run.pauses_at_tick = self._is_at_home
        return self._is_at_home

    def next_pause(self) -> Pause:
        """Take steps until the job pauses. Raises ``StopIteration`` at its end."""
        if self._steps is None:
            self._steps = self.work(self) or _no_steps()
        return next(self._steps)

    def cancel(self) -> None:
        self.cancelled = True
        if self._guest_run is not None:
            self._guest_run.cancelled = True

    def own_result(self, owner: Literal["work", "watchdog"] = "work") -> bool:
        """Whether ``owner`` may set the result; the first one that calls this may."""
        with self._lock:
            self._owner = self._owner or owner
            return self._owner == owner

    @property
    def held_bytes(self) -> int:
        """The memory of a guest that waits for a result."""
        return 0 if self._guest_run is None else self._guest_run.own_bytes

    def must_end(self) -> bool:
        """Whether the job should end instead of waiting."""
        return self.cancelled or self._owner == "watchdog"

    def finish(self, value: object) -> None:
        if self.own_result():
            self.future.set_result(value)

    def fail(self, error: BaseException) -> None:
        if self.own_result() and not self.future.done():
            self.future.set_exception(error)


SessionJobWork = Callable[[SessionJob], JobSteps | None]
"""The function of a job; it sets the future's result if ``own_result`` is true. It blocks its
thread, or returns steps."""


class SessionQueue:
    """The jobs of one session, in order."""

    def __init__(self, session: Session | None) -> None:
        self.session = session
        self.waiting: deque[SessionJob] = deque()
        self.running: SessionJob | None = None


class SessionQueues:
    """All queues of a sandbox over one set of threads."""

    def __init__(
        self, workers: GuestThreads, held_bytes_max: int, on_start: Callable[[], None]
    ) -> None:
        """``on_start`` is called before a job runs. While the guests that wait for results hold
        more than ``held_bytes_max``, no other run begins."""
        self._threads, self._held_bytes_max, self._on_start = workers, held_bytes_max, on_start
        self._changed = threading.Condition()
        self._running: dict[SessionJob, SessionQueue] = {}
        self._waiting: dict[SessionJob, SessionQueue] = {}
        """Running jobs that wait for a result, and have no thread."""
        self._held_bytes = 0
        """Memory of the guests of waiting jobs."""
        self._postponed: dict[SessionQueue, None] = {}

    def submit(
        self,
        queue: SessionQueue,
        work: SessionJobWork,
        *,
        runs: bool = False,
        home: int | None = None,
    ) -> Future[Any]:
        job = SessionJob(work, runs=runs, home=home)
        with self._changed:
            queue.waiting.append(job)
            started = self._next_job(queue)
        if started is not None:
            if home is not None:
                self._on_start()
            self._continue(started)
        return job.future

    def submit_here(self, queue: SessionQueue, work: SessionJobWork, *, is_quick: bool) -> None:
        """Submit a job that this thread executes at once, if the queue has no other job, and this
        is a thread of guests or the job is quick."""
        is_here = is_quick or self._threads.is_current
        self.submit(queue, work, home=threading.get_ident() if is_here else None)

    @property
    def is_idle(self) -> bool:
        return not (self._running or self._waiting)

    def running(self) -> list[tuple[SessionJob, SessionQueue]]:
        """The running jobs that have a thread."""
        with self._changed:
            return list(self._running.items())

    def waiting(self) -> list[SessionJob]:
        with self._changed:
            return list(self._waiting)

    def cancel(self, queue: SessionQueue) -> None:
        """Cancel the running job and the waiting ones."""
        with self._changed:
            jobs = [queue.running, *queue.waiting]
        for job in jobs:
            if job is not None:
                job.cancel()
                self.end_wait(job)
        with self._changed:
            started = self._next_job(queue)
        self._start([started])

    def end_wait(self, job: SessionJob) -> None:
        """Continue a job that waits for a result, without it."""
        if (result := job.waits_for) is not None:
            self._end_wait(job, result)

    def detach(self, job: SessionJob) -> None:
        """Replace the thread of a stuck job, and start the next job of its queue."""
        if job.thread is not None:
            self._threads.replace(job.thread)
        self._on_done(job)

    def wait_until_idle(self) -> None:
        """Wait until no job is running."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_idle)

    def _continue(self, job: SessionJob) -> None:
        if job.home == threading.get_ident():
            self._run(job)
        else:
            self._start([job])

    def _run(self, job: SessionJob) -> None:
        """Take the steps of a job until it ends or leaves this thread."""
        is_at_home = job.enter()
        while True:
            try:
                pause = job.next_pause()
            except StopIteration:
                break
            except BaseException as error:
                job.fail(error)
                break
            if pause is not None:
                if self._wait(job, pause):
                    return
            elif is_at_home:
                self._start([job])
                return
        self._on_done(job)

    def _wait(self, job: SessionJob, result: PendingResult) -> bool:
        """Have the job continued with the result; false if it should continue now."""
        if result.done() or job.must_end():
            return False
        with self._changed:
            queue = self._running.pop(job, None)
            if queue is None:  # The watchdog has ended it.
                return False
            job.waits_for, self._waiting[job] = result, queue
            self._held_bytes += job.held_bytes
        result.add_done_callback(partial(self._end_wait, job))
        if job.must_end():
            self._end_wait(job, result)
        return True

    def _end_wait(self, job: SessionJob, result: PendingResult) -> None:
        """Continue the job if it waits for this result."""
        with self._changed:
            if job.waits_for is not result:
                return
            job.waits_for = None
            self._running[job] = self._waiting.pop(job)
            self._held_bytes -= job.held_bytes
            started = self._postponed_jobs()
        self._start(started)
        if job.must_end():
            self._start([job])
        else:
            self._continue(job)

    def _next_job(self, queue: SessionQueue) -> SessionJob | None:
        """Mark the queue's next job as running, if it may."""
        if queue.running is not None or not queue.waiting:
            return None
        first = queue.waiting[0]
        if first.runs and not first.cancelled and self._held_bytes > self._held_bytes_max:
            self._postponed[queue] = None
            return None
        job = queue.running = queue.waiting.popleft()
        self._running[job] = queue
        return job

    def _postponed_jobs(self) -> list[SessionJob | None]:
        queues, self._postponed = self._postponed, {}
        return [self._next_job(queue) for queue in queues]

    def _start(self, jobs: Iterable[SessionJob | None]) -> None:
        for job in jobs:
            if job is not None:
                self._on_start()
                self._threads.submit(partial(self._run, job))

    def _on_done(self, job: SessionJob) -> None:
        with self._changed:
            queue = self._running.pop(job, None)
            if queue is None:
                return
            queue.running = None
            started = [*self._postponed_jobs(), self._next_job(queue)]
            self._changed.notify_all()
        self._start(started)


def _no_steps() -> JobSteps:
    yield from ()


# --- registry -------------------------------------------------------------------------------------

# The sessions of a sandbox: live ones, with an instance, and suspended ones.
#
# The sessions used last are live, up to a number and an amount of memory; the registry suspends the
# others. It never removes a session on its own: a caller that can rebuild sessions reads
# ``eviction_candidates`` and destroys those.


class SessionRegistry:
    """Thread-safe; ``mark_used`` is called by the thread that executes the session's job."""

    def __init__(self, queues: SessionQueues, *, live_max: int, live_bytes_max: int) -> None:
        self._queues, self._live_max, self._live_bytes_max = queues, live_max, live_bytes_max
        self._lock = threading.Lock()
        self._all: dict[str, tuple[SessionQueue, Session]] = {}
        self._live: OrderedDict[str, int] = OrderedDict()
        """Memory of each instance in bytes, in the order of use."""
        self._suspended: OrderedDict[str, int] = OrderedDict()
        """Memory of each suspended session in bytes, the longest suspended first."""
        self.suspended_bytes = 0

    def get(self, session_id: str) -> tuple[SessionQueue, Session] | None:
        return self._all.get(session_id)

    def all(self) -> list[tuple[SessionQueue, Session]]:
        with self._lock:
            return list(self._all.values())

    def find(self, session_id: str) -> tuple[SessionQueue, Session]:
        found = self._all.get(session_id)
        if found is None:
            raise _unknown(session_id)
        return found

    def add(self, session: Session) -> None:
        with self._lock:
            if session.id in self._all:
                raise Refused("SESSION_IDENTITY_IN_USE", f"there is a session {session.id}")
            self._all[session.id] = SessionQueue(session), session
            self._add_suspended(session)

    def remove(self, session_id: str) -> tuple[SessionQueue, Session]:
        with self._lock:
            found = self._all.pop(session_id, None)
            self._remove_entry(session_id)
        if found is None:
            raise _unknown(session_id)
        return found

    def mark_used(self, session: Session) -> None:
        """Count a use of the session, and suspend sessions beyond the limits."""
        resting = []
        with self._lock:
            self._update(session)
            while len(self._live) > self._live_max or (
                sum(self._live.values()) > self._live_bytes_max and len(self._live) > 1
            ):
                found = self._all[next(iter(self._live))]
                self._add_suspended(found[1])
                resting.append(found)
        self._suspend_all(resting)

    def suspend_build(self, build: str) -> None:
        """Suspend all sessions of a build that is released."""
        with self._lock:
            resting = [
                (queue, session)
                for queue, session in map(self._all.__getitem__, self._live)
                if session.build == build
            ]
            for _, session in resting:
                self._add_suspended(session)
        self._suspend_all(resting)

    def eviction_candidates(
        self, resting_bytes_max: int, spared: Callable[[str], bool]
    ) -> list[str]:
        """The longest suspended sessions whose memory exceeds the limit."""
        found = []
        with self._lock:
            excess_bytes = self.suspended_bytes - resting_bytes_max
            for session_id, held_bytes in self._suspended.items():
                if excess_bytes <= 0:
                    break
                if not spared(session_id):
                    found.append(session_id)
                    excess_bytes -= held_bytes
        return found

    def _suspend_all(self, sessions: Iterable[tuple[SessionQueue, Session]]) -> None:
        """At once if possible, so that the instances serve the runs that wait for a thread."""
        for queue, session in sessions:
            suspend = partial(self._suspend, session)
            self._queues.submit_here(queue, suspend, is_quick=session.suspends_at_once)

    def _suspend(self, session: Session, job: SessionJob) -> None:
        session.suspend()
        with self._lock:
            self._update(session)
        job.finish(None)

    def _update(self, session: Session) -> None:
        """Count the session as live or suspended, with its present memory."""
        found = self._all.get(session.id)
        if found is None or found[1] is not session:
            return
        if session.instance is None:
            self._add_suspended(session)
        else:
            self._remove_entry(session.id)
            self._live[session.id] = session.instance.memory_bytes

    def _add_suspended(self, session: Session) -> None:
        self._remove_entry(session.id)
        self._suspended[session.id] = held_bytes = session.held_bytes
        self.suspended_bytes += held_bytes

    def _remove_entry(self, session_id: str) -> None:
        self._live.pop(session_id, None)
        self.suspended_bytes -= self._suspended.pop(session_id, 0)


def _unknown(session_id: str) -> Refused:
    return Refused("SESSION_NOT_FOUND", f"there is no session {session_id[:80]}")
