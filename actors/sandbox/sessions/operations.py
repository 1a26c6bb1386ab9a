"""What is done in sessions, each time by the one thread that has the session.

Every method here is the work of a job: it ends the job, if that is still its to end, and leaves
the session such that the next job may begin. Who works when is ``jobs``'s, and what a step of a run
means for its session is the session's.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.sandbox.contract import (
    Answer,
    AnswerCall,
    Instance,
    Outcome,
    Step,
    Stopped,
    Tool,
)
from rookery.actors.sandbox.results import refused, result_of
from rookery.actors.sandbox.runtime.guest_registry import Builds
from rookery.actors.sandbox.sessions.guest_run import Suspended, Turn, driven
from rookery.actors.sandbox.sessions.queue import Job
from rookery.actors.sandbox.sessions.registry import Sessions
from rookery.actors.sandbox.sessions.run_log import Entry
from rookery.actors.sandbox.sessions.session import CancelledEarly, Session
from rookery.actors.sandbox.sessions.snapshot import Snapshot, SnapshotHeader, seal
from rookery.actors.sandbox.validate import check_new_request, check_request, limits_in_force
from rookery.schemas.errors import Refused
from rookery.schemas.run import (
    SNAPSHOT_VERSION,
    ErrorObject,
    RunRequest,
    RunResult,
    RunStatus,
    SessionLimits,
)

__all__ = ["SessionWork"]


class SessionWork:
    """``key`` seals snapshots."""

    def __init__(self, key: bytes, builds: Builds, sessions: Sessions) -> None:
        self._key, self._builds, self._sessions = key, builds, sessions

    def run(
        self,
        session: Session,
        request: RunRequest,
        job: Job,
        *,
        offered: dict[str, Tool] | None,
        answer: AnswerCall,
        now_ms: int,
        known: list[Entry],
    ) -> None:
        session.last_run_counts = False
        if refusal := _refusal(request, session):
            job.finish(refusal)
            return
        if offered is not None and session.turn is None:
            session.tools = offered
        self._drive(session, job, session.start(request, answer, now_ms, known))

    def resume(
        self,
        session: Session,
        answers: Mapping[int, Answer],
        advance_ms: int,
        answer: AnswerCall,
        job: Job,
    ) -> None:
        self._drive(session, job, session.resume(answers, advance_ms, answer))

    def cancel(self, session: Session, job: Job) -> None:
        """A run that waits; one at work has ended by now."""
        result = None
        if (turn := session.turn) is not None:
            turn.cancelled = True
            result = session.give_up(turn)
            self._sessions.used(session)
        job.finish(result)

    def seal(self, session: Session, limits: SessionLimits | UnsetType, job: Job) -> None:
        sealed = self._sealed(session, limits)
        self._sessions.used(session)
        job.finish(sealed)

    def drop(self, session: Session, job: Job) -> None:
        session.drop_instance()
        job.finish(None)

    def check(self, request: RunRequest, offered: Mapping[str, Tool], job: Job) -> None:
        """Of no session: what is wrong with the request."""
        try:
            check_new_request(request)
            limits = limits_in_force(request, SessionLimits())
            shelf = self._builds.shelf(request.language)
        except Refused as refusal:
            job.finish(refused(refusal))
            return
        turn = job.turn = shelf.check_turn(request.code, offered, limits)
        step = shelf.check(turn)
        job.finish(result_of(step, turn.tally, turn.stopwatch, limits))

    def _drive(self, session: Session, job: Job, turn: Turn) -> None:
        job.turn = turn
        instance: Instance | None = None
        step: Step | Suspended
        try:
            instance = session.bring_back()
            step = driven(turn, instance)
        except CancelledEarly as stopped:
            step = Stopped(error=ErrorObject(code=stopped.code, message=stopped.message))
        except BaseException:
            if job.claim():
                session.take_back(turn)
            raise
        if not job.claim():
            if instance is not None:
                instance.close()
            return
        outcome = session.settle(turn, step)
        if turn.saved.return_snapshot and _is_ok(outcome):
            outcome = msgspec.structs.replace(outcome, snapshot_id=self._sealed(session).id)
        job.future.set_result(outcome)
        if session.checkpoint_is_due:
            session.checkpoint()
        self._sessions.used(session)
        self._builds.used(session.language, session.build)

    def _sealed(self, session: Session, limits: SessionLimits | UnsetType = UNSET) -> Snapshot:
        header = SnapshotHeader(
            version=SNAPSHOT_VERSION,
            session_id=session.id,
            language=session.language,
            build=session.build,
            start=self._builds.start(session.language, session.build),
            tools={name: tool.schema_digest for name, tool in sorted(session.tools.items())},
            limits=limits,
        )
        return seal(self._key, header, session.save())


def _refusal(request: RunRequest, session: Session) -> RunResult | None:
    try:
        check_request(request)
        if request.language != session.language:
            text = f"session {session.id} speaks {session.language}"
            raise Refused("UNSUPPORTED_FEATURE", text, hint="run it in another session")
    except Refused as refusal:
        return refused(refusal)
    return None


def _is_ok(outcome: Outcome) -> bool:
    return isinstance(outcome, RunResult) and outcome.status is RunStatus.OK
