"""``SessionCopy``: a session as it was between two runs.

Copying the memory takes a few milliseconds and happens in the session's queue. Compressing and
sealing the copy take longer, and the next run of the session does not wait for them.
"""

from __future__ import annotations

from typing import NamedTuple

from rookery.actors.sandbox.contract import Image, MemoryCopy
from rookery.actors.sandbox.sessions.run_log import RunLog
from rookery.actors.sandbox.sessions.session import Session
from rookery.actors.sandbox.sessions.snapshot import SavedSession, SnapshotHeader
from rookery.schemas.errors import Refused

__all__ = ["SessionCopy", "adopt", "copy_session"]


class SessionCopy(NamedTuple):
    """A copy of a session without a run."""

    session: Session
    header: SnapshotHeader
    base: Image
    """The image that the session had."""
    history: list[RunLog]
    """The logs of its runs since; the memory has their effects."""
    memory: MemoryCopy | None
    """``None`` if there are no runs since the image, or if the guest has no images."""
    replay_ns: int

    def compressed(self) -> Image | None:
        """The image of the copied memory."""
        return None if self.memory is None else self.memory()

    def saved(self, image: Image | None) -> SavedSession:
        """The copy as a snapshot stores it; ``image``: its compressed memory."""
        session, logs = self.session, [] if image is not None else self.history
        history = [log.ended() for log in logs]
        return SavedSession(session.limits, session.created_at, image or self.base, history)


def copy_session(session: Session, header: SnapshotHeader) -> SessionCopy:
    """Copy the session; until ``adopt`` it stores no image of its own."""
    if session.guest_run is not None:
        raise Refused("GUARD_REJECTED", f"session {session.id} has a run that has not ended")
    history = session.history
    memory = session.ensure_instance().copy_memory() if history else None
    session.is_copied = memory is not None
    return SessionCopy(session, header, session.base, history, memory, session.replay_ns)


def adopt(copy: SessionCopy, image: Image | None) -> None:
    """Give the session the image of its copy, in place of the runs that the image contains."""
    session = copy.session
    session.is_copied = False
    if image is not None and session.base is copy.base:
        session.rebase(image, len(copy.history), copy.replay_ns)
