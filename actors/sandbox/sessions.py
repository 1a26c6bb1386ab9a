"""The sessions of a sandbox: which there are, which of them are live, and which rest.

Those used last keep their instance, as long as these are not too many and do not take too much
memory. The others rest, as an image or as the logs of their runs; how, is the session's to say.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from rookery.actors.sandbox.jobs import Job, JobWork, Lane, Lanes
from rookery.actors.sandbox.session import Session
from rookery.schemas.errors import Refused

__all__ = ["Sessions"]


class Sessions:
    """Called on any thread; what is said of a session, on the one that has it."""

    def __init__(self, lanes: Lanes, *, live_max: int, live_bytes_max: int) -> None:
        self._lanes, self._live_max, self._live_bytes_max = lanes, live_max, live_bytes_max
        self._lock = threading.Lock()
        self._all: dict[str, tuple[Lane, Session]] = {}
        self._live: OrderedDict[str, int] = OrderedDict()
        """What their instances take, in bytes; the one used last at the end."""

    def get(self, session_id: str) -> tuple[Lane, Session] | None:
        return self._all.get(session_id)

    def all(self) -> list[tuple[Lane, Session]]:
        with self._lock:
            return list(self._all.values())

    def find(self, session_id: str) -> tuple[Lane, Session]:
        found = self._all.get(session_id)
        if found is None:
            raise _unknown(session_id)
        return found

    def add(self, session: Session) -> None:
        with self._lock:
            if session.id in self._all:
                raise Refused("SESSION_IDENTITY_IN_USE", f"there is a session {session.id}")
            self._all[session.id] = Lane(session), session

    def remove(self, session_id: str) -> tuple[Lane, Session]:
        with self._lock:
            found = self._all.pop(session_id, None)
            self._live.pop(session_id, None)
        if found is None:
            raise _unknown(session_id)
        return found

    def used(self, session: Session) -> None:
        """Keep the sessions used last; let the others rest."""
        resting = []
        with self._lock:
            self._live.pop(session.id, None)
            if session.instance is not None and session.id in self._all:
                self._live[session.id] = session.instance.memory_bytes
            while len(self._live) > self._live_max or (
                sum(self._live.values()) > self._live_bytes_max and len(self._live) > 1
            ):
                oldest, _ = self._live.popitem(last=False)
                resting.append(self._all[oldest])
        for lane, who in resting:
            self._lanes.submit(lane, _rest(who))

    def rest_on(self, build: str) -> None:
        """The build is let go: no session keeps an instance of it."""
        with self._lock:
            on = [(lane, who) for lane, who in self._all.values() if who.build == build]
            resting = [(lane, who) for lane, who in on if self._live.pop(who.id, None) is not None]
        for lane, who in resting:
            self._lanes.submit(lane, _rest(who))


def _rest(session: Session) -> JobWork:
    def work(job: Job) -> None:
        session.rest()
        job.finish(None)

    return work


def _unknown(session_id: str) -> Refused:
    return Refused("SESSION_NOT_FOUND", f"there is no session {session_id[:80]}")
