"""The watch over runs: what takes too long is ended, and who stands still keeps nobody from work.

Struck a hundred times a second while anything runs. Guests look at their own time then; a run that
is lost in a tool is ended here, without its thread. What its end comes to is the session's.
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
    """So many threads, whose instances hold so much, are made up for while they stand still."""

    def tick(self) -> bool:
        """One beat; whether there is anything to watch."""
        self.engine.increment_epoch()
        running = self.queues.running()
        blocked, held_bytes = [], 0
        for job, lane in running:
            if (turn := job.guest_run) is None or turn.blocking_call is None:
                continue
            if turn.stopwatch.wall_is_over or turn.cancelled:
                self._abandon_job(job, lane, turn)
                continue
            held_bytes += turn.held_bytes
            if job.thread is not None and held_bytes <= self.blocked_bytes_max:
                blocked.append(job.thread)
        self.threads.allow_extra(blocked[: self.blocked_max])
        return bool(running)

    def _abandon_job(self, job: SessionJob, lane: SessionQueue, turn: GuestRun) -> None:
        if job.own_result():
            assert lane.session is not None
            turn.abandoned = True
            outcome = lane.session.abandon_thread(turn)
            self.sessions.mark_used(lane.session)
            self.queues.detach(job)
            job.future.set_result(outcome)
