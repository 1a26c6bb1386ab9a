"""The jobs of sessions: run, resume, cancel, snapshot, copy, check.

Each method is the work of a job, executed by one thread at a time for a session. It sets the result
of the job, unless the watchdog has done so, and leaves the session ready for the next job. Before
anything slow it pauses for ``None``, because it may be executed by a thread that must not block.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.sandbox.contract import (
    CallTool,
    Image,
    Instance,
    OnOutput,
    Outcome,
    Pause,
    Step,
    StepStopped,
    Tool,
    ToolResult,
)
from rookery.actors.sandbox.runtime.guest_registry import GuestRegistry
from rookery.actors.sandbox.runtime.suspension import complete
from rookery.actors.sandbox.sessions.guest_run import (
    CallSuspended,
    GuestRun,
    SavedRun,
    execute_to_stop,
)
from rookery.actors.sandbox.sessions.meters import RunMeters, refused_result, result_of
from rookery.actors.sandbox.sessions.queue import SessionJob, SessionRegistry
from rookery.actors.sandbox.sessions.run_log import LogEntry, RunLog
from rookery.actors.sandbox.sessions.session import (
    CancelledDuringReplay,
    Session,
    SessionCopy,
    adopt,
    copy_session,
)
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

__all__ = ["SessionOperations"]

_FILES_MS = 60_000


class SessionOperations:
    """Executes jobs on sessions; ``key`` seals snapshots."""

    def __init__(
        self,
        key: bytes,
        builds: GuestRegistry,
        sessions: SessionRegistry,
        compress_beside: Callable[[SessionCopy], None],
    ) -> None:
        """``compress_beside`` compresses a copy while its session goes on, and gives the session
        the image."""
        self._key, self._guests, self._sessions = key, builds, sessions
        self._compress_beside = compress_beside

    def run(
        self,
        session: Session,
        request: RunRequest,
        job: SessionJob,
        *,
        offered: dict[str, Tool] | None,
        answer: CallTool,
        on_output: OnOutput,
        now_ms: int,
        known: list[LogEntry],
    ) -> Generator[Pause, None, None]:
        session.last_run_kept = False
        if refusal := _refusal(request, session):
            job.finish(refusal)
            return
        if offered is not None and session.guest_run is None:
            session.tools = offered
        run = session.start(request, answer, now_ms, known, on_output)
        yield from self._execute(session, job, run)

    def resume(
        self,
        session: Session,
        answers: Mapping[int, ToolResult],
        advance_ms: int,
        job: SessionJob,
        *,
        answer: CallTool,
        on_output: OnOutput,
    ) -> Generator[Pause, None, None]:
        run = session.resume(answers, advance_ms, answer, on_output)
        yield from self._execute(session, job, run)

    def cancel(self, session: Session, job: SessionJob) -> None:
        """Cancel a suspended run; a running one has ended before this job."""
        result = None
        if (run := session.guest_run) is not None:
            run.cancelled = True
            result = session.cancel(run)
            self._sessions.mark_used(session)
        job.finish(result)

    def seal(self, session: Session, limits: SessionLimits | UnsetType, job: SessionJob) -> None:
        sealed = self._sealed(session, limits)
        self._sessions.mark_used(session)
        job.finish(sealed)

    def copy(self, session: Session, limits: SessionLimits | UnsetType, job: SessionJob) -> None:
        """Copy a session between two runs."""
        copied = copy_session(session, self._header(session, limits))
        self._sessions.mark_used(session)
        job.finish(copied)

    def seal_copy(self, copy: SessionCopy, image: Image | None) -> Snapshot:
        """Seal a copy, on any thread; ``image``: its compressed memory."""
        return seal(self._key, copy.header, copy.saved(image))

    def adopt(self, copy: SessionCopy, image: Image | None, job: SessionJob) -> None:
        """Let the session continue from the image of its copy, or from none after a failure."""
        adopt(copy, image)
        job.finish(None)

    def files(self, session: Session, request: bytes, job: SessionJob) -> None:
        """Read files of a session that nothing else uses."""
        limits = msgspec.structs.replace(session.limits, wall_ms=_FILES_MS, cpu_ms=_FILES_MS)
        log = RunLog(program=request, limits=limits, tools={}, now_ns=0, entries=[])
        run = GuestRun(SavedRun(log, RunMeters()))
        job.finish(complete(execute_to_stop(run, session.ensure_instance())))

    def drop_instance(self, session: Session, job: SessionJob) -> None:
        session.drop_instance()
        job.finish(None)

    def check(self, request: RunRequest, offered: Mapping[str, Tool], job: SessionJob) -> None:
        """Check a request, without a session."""
        try:
            check_new_request(request)
            limits = limits_in_force(request, SessionLimits())
            pool = self._guests.pool(request.language)
        except Refused as refusal:
            job.finish(refused_result(refusal))
            return
        run = job.guest_run = pool.check_run(request.code, offered, limits)
        step = pool.check(run)
        job.finish(result_of(step, run.tally, run.stopwatch, limits))

    def _execute(
        self, session: Session, job: SessionJob, run: GuestRun
    ) -> Generator[Pause, None, None]:
        job.guest_run = run
        instance: Instance | None = None
        step: Step | CallSuspended
        try:
            if not session.continues_at_once:
                yield None
            instance = session.ensure_instance()
            step = yield from execute_to_stop(run, instance)
        except CancelledDuringReplay as stopped:
            step = StepStopped(error=ErrorObject(code=stopped.code, message=stopped.message))
        except BaseException:
            if job.own_result():
                session.undo_step(run)
            raise
        if not job.own_result():
            if instance is not None:
                instance.close()
            return
        outcome = session.on_step(run, step)
        if run.saved.return_snapshot and _is_ok(outcome):
            yield None
            outcome = msgspec.structs.replace(outcome, snapshot_id=self._sealed(session).id)
        job.future.set_result(outcome)
        if session.checkpoint_is_due and session.guest_run is None:
            yield None
            copied = copy_session(session, self._header(session, UNSET))
            if copied.memory is not None:
                self._compress_beside(copied)
        self._sessions.mark_used(session)
        self._guests.mark_used(session.language, session.build)

    def _sealed(self, session: Session, limits: SessionLimits | UnsetType = UNSET) -> Snapshot:
        return seal(self._key, self._header(session, limits), session.save())

    def _header(self, session: Session, limits: SessionLimits | UnsetType) -> SnapshotHeader:
        return SnapshotHeader(
            version=SNAPSHOT_VERSION,
            session_id=session.id,
            language=session.language,
            build=session.build,
            start=self._guests.start(session.language, session.build),
            tools=session.bound_tools,
            limits=limits,
        )


def _refusal(request: RunRequest, session: Session) -> RunResult | None:
    try:
        check_request(request)
        if request.language != session.language:
            text = f"session {session.id} runs {session.language}"
            raise Refused("UNSUPPORTED_FEATURE", text, hint="run it in another session")
    except Refused as refusal:
        return refused_result(refusal)
    return None


def _is_ok(outcome: Outcome) -> bool:
    return isinstance(outcome, RunResult) and outcome.status is RunStatus.OK
