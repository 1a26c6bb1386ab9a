"""Ends runs that exceed their time, and allows extra threads for those that are blocked in tools.

The watchdog ticks two hundred times a second while a job runs. At a tick each running guest checks
its limits and leaves a thread that it must not block; the watchdog ends a run whose time is over in
a tool, and replaces its thread. Guests that wait without a thread are many, and checked less often.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle
from typing import Final

import wasmtime

from rookery.actors.sandbox.runtime.guest_threads import GuestThreads
from rookery.actors.sandbox.sessions.guest_run import GuestRun
from rookery.actors.sandbox.sessions.queue import (
    SessionJob,
    SessionQueue,
    SessionQueues,
    SessionRegistry,
)

__all__ = ["Watchdog"]


_TICKS_PER_CHECK: Final = 8
"""Ticks from one check of the waiting guests to the next: 40 ms."""


@dataclass(frozen=True, kw_only=True)
class Watchdog:
    engine: wasmtime.Engine
    queues: SessionQueues
    sessions: SessionRegistry
    threads: GuestThreads
    blocked_max: int
    blocked_bytes_max: int
    """Limits on the blocked threads that an extra thread is allowed for: count, and memory of their
    instances."""
    _countdown: Iterator[int] = field(default_factory=lambda: cycle(range(_TICKS_PER_CHECK)))

    def tick(self) -> bool:
        """Check all running jobs; returns whether there are any."""
        self.engine.increment_epoch()
        running = self.queues.running()
        blocked, held_bytes = [], 0
        for job, queue in running:
            if (run := job.guest_run) is None or run.blocking_call is None:
                continue
            if _is_over(run):
                self._abandon_job(job, queue, run)
                continue
            held_bytes += run.held_bytes
            if job.thread is not None and held_bytes <= self.blocked_bytes_max:
                blocked.append(job.thread)
        self.threads.allow_extra(blocked[: self.blocked_max])
        if next(self._countdown) == 0:
            self._end_waits()
        return not self.queues.is_idle

    def _end_waits(self) -> None:
        for job in self.queues.waiting():
            if job.guest_run is None or _is_over(job.guest_run):
                self.queues.end_wait(job)

    def _abandon_job(self, job: SessionJob, queue: SessionQueue, run: GuestRun) -> None:
        if job.own_result("watchdog"):
            assert queue.session is not None
            run.abandoned = True
            outcome = queue.session.abandon_thread(run)
            self.sessions.mark_used(queue.session)
            self.queues.detach(job)
            job.future.set_result(outcome)


def _is_over(run: GuestRun) -> bool:
    return run.stopwatch.wall_is_over or run.cancelled
