"""The sessions of a sandbox: live ones, with an instance, and suspended ones.

The sessions used last are live, up to a number and an amount of memory; the registry suspends the
others. It never removes a session on its own: a caller that can rebuild sessions reads
``eviction_candidates`` and destroys those.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import partial

from rookery.actors.sandbox.sessions.queue import SessionJob, SessionQueue, SessionQueues
from rookery.actors.sandbox.sessions.session import Session
from rookery.schemas.errors import Refused

__all__ = ["SessionRegistry"]


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
            self._queues.submit_here(queue, partial(self._suspend, session))

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
