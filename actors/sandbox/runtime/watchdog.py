"""Ends runs that exceed their time, and allows extra threads for those that are blocked in tools.

The watchdog ticks a hundred times a second while a job runs. At a tick each running guest checks
its limits; the watchdog ends a run whose time is over in a tool, and replaces its thread.
"""

from __future__ import annotations

from dataclasses import dataclass

import wasmtime

from rookery.actors.sandbox.runtime.guest_threads import GuestThreads
from rookery.actors.sandbox.sessions.guest_run import GuestRun
from rookery.actors.sandbox.sessions.queue import SessionJob, SessionQueue, SessionQueues
from rookery.actors.sandbox.sessions.registry import SessionRegistry

__all__ = ["Watchdog"]


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

    def tick(self) -> bool:
        """Check all running jobs; returns whether there are any."""
        self.engine.increment_epoch()
        running = self.queues.running()
        blocked, held_bytes = [], 0
        for job, queue in running:
            if (run := job.guest_run) is None or run.blocking_call is None:
                continue
            if run.stopwatch.wall_is_over or run.cancelled:
                self._abandon_job(job, queue, run)
                continue
            held_bytes += run.held_bytes
            if job.thread is not None and held_bytes <= self.blocked_bytes_max:
                blocked.append(job.thread)
        self.threads.allow_extra(blocked[: self.blocked_max])
        return bool(running)

    def _abandon_job(self, job: SessionJob, queue: SessionQueue, run: GuestRun) -> None:
        if job.own_result():
            assert queue.session is not None
            run.abandoned = True
            outcome = queue.session.abandon_thread(run)
            self.sessions.mark_used(queue.session)
            self.queues.detach(job)
            job.future.set_result(outcome)
