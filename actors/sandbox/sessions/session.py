"""One session: an image of its interpreter, the logs of the runs since, and a copy of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from rookery.actors.sandbox.contract import (
    LIMIT_CODES,
    CallTool,
    GuestEnvironment,
    Image,
    Instance,
    InstanceSource,
    MemoryCopy,
    OnOutput,
    Outcome,
    Step,
    StepEnded,
    StepStopped,
    StepWaits,
    SuspendedRun,
    Tool,
    ToolResult,
    ignore_output,
)
from rookery.actors.sandbox.runtime.introspection import ToolDescriptions
from rookery.actors.sandbox.runtime.mentions import Mentions, names_for, restored, stored
from rookery.actors.sandbox.runtime.suspension import complete
from rookery.actors.sandbox.runtime.wasm import GuestStopped
from rookery.actors.sandbox.sessions.guest_run import CallSuspended, GuestRun, SavedRun
from rookery.actors.sandbox.sessions.meters import RunMeters, Stopwatch, result_of
from rookery.actors.sandbox.sessions.run_log import LogEntry, RunLog, mentions_after
from rookery.actors.sandbox.sessions.snapshot import SavedSession, SnapshotHeader
from rookery.actors.sandbox.validate import limits_in_force
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.run import (
    ErrorObject,
    Language,
    RunRequest,
    RunResult,
    SessionLimits,
    SessionMeta,
)

__all__ = [
    "CancelledDuringReplay",
    "Session",
    "SessionCopy",
    "adopt",
    "copy_session",
]

# --- session --------------------------------------------------------------------------------------

# The instance is only a shortcut: when it is lost, to a limit, a crash or eviction, the session
# loads the image into a new instance and repeats the logged runs. So limits cost nothing until a
# run exceeds one. Not thread-safe: ``SessionQueues`` runs one job of a session at a time.


_NS_PER_MS = 1_000_000
_REPLAY_NS_MAX = 200 * _NS_PER_MS
_REPLAY_RUNS_MAX = 100
_REPLAY_BYTES_MAX = 1 << 20
_SUSPEND_NS_MAX = 5 * _NS_PER_MS
_SUSPEND_BYTES_MAX = 32 << 10
_AT_ONCE_NS_MAX = 1 * _NS_PER_MS
"""Logs below these are repeated as fast as an image is loaded, and take a tenth of its memory."""
_HELD_BYTES = 4 << 10
_LOG_BYTES = 2 << 10
"""The fixed memory of a session and of a log."""
_PRISTINE = b""
"""The memory of an image of a new instance."""


class CancelledDuringReplay(GuestStopped):
    """A run was cancelled while its session was being rebuilt."""


class Session:
    def __init__(
        self,
        session_id: str,
        guest: tuple[Language, str],
        tools: dict[str, Tool],
        saved: SavedSession,
        instances: InstanceSource,
    ) -> None:
        """``guest``: language and build of the session, and of ``instances``."""
        self.id, (self.language, self.build), self.tools = session_id, guest, tools
        self.limits, self.created_at = saved.limits, saved.created_at
        begun_ns = max((log.now_ns for log in saved.history), default=0)
        self.last_used_at = max(saved.created_at, begun_ns // _NS_PER_MS)
        self.instance: Instance | None = None
        self.guest_run: GuestRun | None = None
        self.last_run_kept = False
        """Whether the last run left its effects."""
        self.artifacts: tuple[bytes, ...] = ()
        """The contents of the last run's artifacts."""
        self.is_copied = False
        """Whether a copy of the session is being compressed, which becomes its image."""
        if saved.turn is not None:
            log = saved.turn.log.resumed(tools)
            self.guest_run = GuestRun(msgspec.structs.replace(saved.turn, log=log))
        self.base_mentions = restored(saved.mentioned)
        """Of the runs that the image contains."""
        self._mentions = mentions_after(self.base_mentions, saved.history, self.language)
        self._base, self._history = saved.base, saved.history
        self._replay_ns, self._replay_bytes = 0, sum(log.size_bytes for log in saved.history)
        self._has_partial_log = False
        """Whether the last log begins in the middle of its run, so that it cannot be repeated."""
        self._instances = instances

    @staticmethod
    def begin(limits: SessionLimits, seed: bytes, now_ms: int) -> SavedSession:
        """A session before its first run."""
        environment = GuestEnvironment(seed=seed, clock_ns=now_ms * _NS_PER_MS)
        return SavedSession(limits, now_ms, Image(_PRISTINE, environment), [])

    # --- a run ------------------------------------------------------------------------------

    def start(
        self,
        request: RunRequest,
        answer: CallTool,
        now_ms: int,
        known: list[LogEntry],
        on_output: OnOutput = ignore_output,
    ) -> GuestRun:
        """``known`` has the results that the run received before it was interrupted."""
        if self.guest_run is not None:
            raise Refused("GUARD_REJECTED", f"session {self.id} has a run that waits for answers")
        limits = limits_in_force(request, self.limits)
        mentions = (self._mentions or Mentions()).after(request.code, self.language)
        log = RunLog.of(request, limits, self.tools, now_ms, mentions)
        if known:
            log.entries, log.catalogue = known, ToolDescriptions.shared(self.tools)
        self.last_used_at = max(self.last_used_at, now_ms)
        saved = SavedRun(log, RunMeters(), return_snapshot=request.return_snapshot)
        saved.wall_ns = log.waited_ms * _NS_PER_MS
        self.guest_run = GuestRun(saved, answer, on_output)
        return self.guest_run

    def resume(
        self,
        answers: Mapping[int, ToolResult],
        advance_ms: int,
        answer: CallTool,
        on_output: OnOutput = ignore_output,
    ) -> GuestRun:
        if self.guest_run is None or self.guest_run.saved.waiting is None:
            raise Refused("GUARD_REJECTED", f"session {self.id} has no run that waits for answers")
        if self.instance is None:
            self.guest_run = GuestRun(self.guest_run.save(), answer)
        self.guest_run.resume(answers, advance_ms, answer, on_output)
        return self.guest_run

    def on_step(self, run: GuestRun, step: Step | CallSuspended) -> Outcome:
        """Apply the last step of a run to the session."""
        if isinstance(step, CallSuspended):
            self.drop_instance()
            run.saved.waiting = SuspendedRun(calls=(step.call,))
            return run.saved.waiting
        if isinstance(step, StepWaits):
            run.saved.waiting = run.suspended_run(step)
            return run.saved.waiting
        self.guest_run, self.artifacts = None, ()
        limit = step.error is not None and step.error.code in LIMIT_CODES
        if limit or isinstance(step, StepStopped):
            self.drop_instance()
        else:
            self.last_run_kept = True
            self._history.append(run.log)
            self._mentions = mentions_after(self._mentions, (run.log,), self.language)
            self._replay_ns += run.stopwatch.cpu_ns
            self._replay_bytes += run.size_bytes
            self._has_partial_log |= run.saved.image is not None
        result = result_of(step, run.tally, run.stopwatch, run.log.limits)
        return self._with_artifacts(result, run) if run.written and self.last_run_kept else result

    def _with_artifacts(self, result: RunResult, run: GuestRun) -> RunResult:
        found = run.written.refs()
        self.artifacts = tuple(content for _, content in found)
        refs, cut = tuple(ref for ref, _ in found), run.written.cut or UNSET
        return msgspec.structs.replace(result, artifacts=refs, artifacts_cut=cut)

    def undo_step(self, run: GuestRun) -> None:
        """Undo a run that could not be driven: it is suspended as before, or never began."""
        self.drop_instance()
        if not run.undo_resume():
            self.guest_run = None

    def abandon_thread(self, run: GuestRun) -> RunResult:
        """End a run whose thread is stuck in a tool; the instance stays with that thread."""
        self.instance = None
        if (call := run.blocking_call) is not None:
            run.tally.record_timeout(call, run.log.tools[call.name])
        return self.cancel(run)

    def cancel(self, run: GuestRun) -> RunResult:
        """End a run; it leaves no effects on the session."""
        self.guest_run = None
        self.drop_instance()
        wall_ms = run.log.limits.wall_ms
        error = ErrorObject(code="TIMEOUT_WALL", message=f"the run took longer than {wall_ms} ms")
        if run.cancelled:
            error = ErrorObject(code="CANCELLED", message="the run was cancelled")
        return result_of(StepStopped(error=error), run.tally, run.stopwatch, run.log.limits)

    @property
    def bound_tools(self) -> dict[str, str]:
        """The tools whose names its guest has, with the digests of their schemas."""
        runs = () if self.guest_run is None else (self.guest_run.log,)
        mentions = mentions_after(self._mentions, runs, self.language) or Mentions()
        names = names_for(self.tools, mentions)
        found = sorted(self.tools.items())
        return {name: tool.schema_digest for name, tool in found if name in names}

    def meta(self) -> SessionMeta:
        return SessionMeta(
            id=self.id,
            created_at=self.created_at,
            last_used_at=self.last_used_at,
            language=self.language,
            limits=self.limits,
        )

    # --- instances --------------------------------------------------------------------------

    @property
    def continues_at_once(self) -> bool:
        """Whether ``ensure_instance`` takes no longer than to change threads several times."""
        if self.instance is not None:
            return self.instance.has_fibers
        is_short = not self._history or 0 < self._replay_ns <= _AT_ONCE_NS_MAX
        has_image = self._base.memory or (self.guest_run and self.guest_run.saved.image)
        return is_short and not has_image and self._instances.is_ready()

    def ensure_instance(self) -> Instance:
        """The instance with the state of the session, or of its suspended run."""
        if self.instance is not None:
            return self.instance
        instance = self._instances.acquire()
        try:
            if self.guest_run is not None and self.guest_run.saved.image is not None:
                instance.load(self.guest_run.saved.image)
            else:
                self._load_base(instance)
                self._replay_history(instance)
        except BaseException:
            instance.close()
            raise
        self.instance = instance
        return instance

    def drop_instance(self) -> None:
        instance, self.instance = self.instance, None
        if instance is not None:
            self._instances.release(instance)

    @property
    def suspends_at_once(self) -> bool:
        """Whether ``suspend`` only resets the instance: that takes no longer than to have another
        thread do it. Thread-safe."""
        return self.guest_run is None and self._has_short_logs

    @property
    def _has_short_logs(self) -> bool:
        """Whether the logs need no image to be repeated soon."""
        short = self._replay_ns <= _SUSPEND_NS_MAX and self._replay_bytes <= _SUSPEND_BYTES_MAX
        return short and not self._has_partial_log

    def suspend(self) -> None:
        """Release the instance; its state is in the logs or in an image."""
        if not self._has_short_logs:
            self.checkpoint()
        if self.instance is not None and self.guest_run is not None:
            copy = self.instance.copy_memory()
            if copy is not None:
                self.guest_run.checkpoint(copy())
        self.drop_instance()

    # --- memory -----------------------------------------------------------------------------

    @property
    def held_bytes(self) -> int:
        """The approximate memory of the session while suspended. Thread-safe."""
        held_bytes = _HELD_BYTES + len(self._history) * _LOG_BYTES
        held_bytes += len(self._base.memory) + self._replay_bytes
        if (run := self.guest_run) is not None:
            image = run.saved.image
            held_bytes += run.size_bytes + (0 if image is None else len(image.memory))
        return held_bytes

    @property
    def base(self) -> Image:
        """The image that the session is rebuilt from."""
        return self._base

    @property
    def history(self) -> list[RunLog]:
        """The logs of the runs since the image."""
        return list(self._history)

    @property
    def replay_ns(self) -> int:
        """How long these runs take to repeat."""
        return self._replay_ns

    @property
    def checkpoint_is_due(self) -> bool:
        return not self.is_copied and (
            self._has_partial_log
            or self._replay_ns > _REPLAY_NS_MAX
            or len(self._history) > _REPLAY_RUNS_MAX
            or self._replay_bytes > _REPLAY_BYTES_MAX
        )

    def checkpoint(self) -> None:
        """Replace the logs by an image of the interpreter."""
        if self._history and self.guest_run is None:
            copy = self.ensure_instance().copy_memory()
            if copy is not None:
                self.rebase(copy(), len(self._history), self._replay_ns)

    def rebase(self, image: Image, runs: int, replay_ns: int) -> None:
        """Replace the first logs by an image; ``replay_ns``: the time of their runs."""
        replaced = self._history[:runs]
        self.base_mentions = mentions_after(self.base_mentions, replaced, self.language)
        self._base, self._history = image, self._history[runs:]
        self._has_partial_log &= bool(self._history)
        self._replay_ns = max(0, self._replay_ns - replay_ns)
        self._replay_bytes = sum(log.size_bytes for log in self._history)

    def save(self) -> SavedSession:
        """The whole session. Releases the instance of a suspended run, which may wait long."""
        run = None
        if self.guest_run is not None:
            self.suspend()
            run = self.guest_run.save()
            run = msgspec.structs.replace(run, log=run.log.waiting())
        self.checkpoint()
        history = [log.ended() for log in self._history]
        mentioned = stored(self.base_mentions)
        return SavedSession(
            self.limits, self.created_at, self._base, history, run, mentioned=mentioned
        )

    def _load_base(self, instance: Instance) -> None:
        if self._base.memory:
            instance.load(self._base)
        else:
            instance.environment = self._base.surroundings.copy()

    def _replay_history(self, instance: Instance) -> None:
        stopwatch = Stopwatch(self.limits)
        stopwatch.begin()
        for log in self._history:
            self._replay_run(log, instance)
        stopwatch.end()
        self._replay_ns = stopwatch.cpu_ns

    def _replay_run(self, log: RunLog, instance: Instance) -> None:
        run = GuestRun(SavedRun(log, RunMeters()), recorded=True)
        run.blocked_by = self.guest_run
        try:
            step = complete(run.execute(instance))
        except GuestStopped as stopped:
            if stopped.code == "CANCELLED":
                raise CancelledDuringReplay(stopped.code, stopped.message) from None
            raise Failed("REPLAY_DIVERGED", f"a recorded run stopped: {stopped}") from None
        if not isinstance(step, StepEnded):
            raise Failed("REPLAY_DIVERGED", "a recorded run waits for an unrecorded call")
        if step.error is not None and step.error.code in LIMIT_CODES:
            raise Failed("REPLAY_DIVERGED", f"a recorded run exceeded a limit: {step.error.code}")
        if not run.listed_tools:
            log.catalogue = None  # Recorded runs all have one; a snapshot does not need it.


# --- session copy ---------------------------------------------------------------------------------

# ``SessionCopy``: a session as it was between two runs.
#
# Copying the memory takes a few milliseconds and happens in the session's queue. Compressing and
# sealing the copy take longer, and the next run of the session does not wait for them.


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
    mentions: Mentions | None
    """Of the base."""

    def compressed(self) -> Image | None:
        """The image of the copied memory."""
        return None if self.memory is None else self.memory()

    def saved(self, image: Image | None) -> SavedSession:
        """The copy as a snapshot stores it; ``image``: its compressed memory."""
        session, limits, created_at = self.session, self.session.limits, self.session.created_at
        if image is None:
            history, mentioned = [log.ended() for log in self.history], stored(self.mentions)
            return SavedSession(limits, created_at, self.base, history, mentioned=mentioned)
        mentioned = stored(mentions_after(self.mentions, self.history, session.language))
        return SavedSession(limits, created_at, image, [], mentioned=mentioned)


def copy_session(session: Session, header: SnapshotHeader) -> SessionCopy:
    """Copy the session; until ``adopt`` it stores no image of its own."""
    if session.guest_run is not None:
        raise Refused("GUARD_REJECTED", f"session {session.id} has a run that has not ended")
    history = session.history
    memory = session.ensure_instance().copy_memory() if history else None
    session.is_copied = memory is not None
    base, mentions = session.base, session.base_mentions
    return SessionCopy(session, header, base, history, memory, session.replay_ns, mentions)


def adopt(copy: SessionCopy, image: Image | None) -> None:
    """Give the session the image of its copy, in place of the runs that the image contains."""
    session = copy.session
    session.is_copied = False
    if image is not None and session.base is copy.base:
        session.rebase(image, len(copy.history), copy.replay_ns)
