"""The watch over runs: what takes too long is ended, and who stands still keeps nobody from work.

Struck a hundred times a second while anything runs. Guests look at their own time then; a run that
is lost in a tool is ended here, without its thread. What its end comes to is the session's.
"""

from __future__ import annotations

from dataclasses import dataclass

import wasmtime

from rookery.actors.sandbox.runtime.guest_threads import Workers
from rookery.actors.sandbox.sessions.guest_run import Turn
from rookery.actors.sandbox.sessions.queue import Job, Lane, Lanes
from rookery.actors.sandbox.sessions.registry import Sessions

__all__ = ["Watch"]


@dataclass(frozen=True, kw_only=True)
class Watch:
    engine: wasmtime.Engine
    lanes: Lanes
    sessions: Sessions
    workers: Workers
    blocked_max: int
    blocked_bytes_max: int
    """So many threads, whose instances hold so much, are made up for while they stand still."""

    def strike(self) -> bool:
        """One beat; whether there is anything to watch."""
        self.engine.increment_epoch()
        running = self.lanes.running()
        blocked, held_bytes = [], 0
        for job, lane in running:
            if (turn := job.turn) is None or turn.asking is None:
                continue
            if turn.stopwatch.wall_is_over or turn.cancelled:
                self._abandon(job, lane, turn)
                continue
            held_bytes += turn.held_bytes
            if job.thread is not None and held_bytes <= self.blocked_bytes_max:
                blocked.append(job.thread)
        self.workers.lend(blocked[: self.blocked_max])
        return bool(running)

    def _abandon(self, job: Job, lane: Lane, turn: Turn) -> None:
        if job.claim():
            assert lane.session is not None
            turn.abandoned = True
            outcome = lane.session.abandon(turn)
            self.sessions.used(lane.session)
            self.lanes.lose(job)
            job.future.set_result(outcome)
