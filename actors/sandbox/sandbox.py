"""The face of the sandbox: creates, runs, snapshots and destroys sessions.

Every method may be called from any thread; the jobs of one session run one after the other.
``SessionOperations`` executes the jobs, ``SessionRegistry`` decides which sessions have an
instance, and ``Watchdog`` ends jobs that exceed their time.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Final, ParamSpec, Self, TypeVar, cast

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.sandbox.contract import (
    CallTool,
    FilesStep,
    Guest,
    Image,
    OnOutput,
    Outcome,
    Step,
    Tool,
    ToolResult,
    ignore_output,
    suspend,
)
from rookery.actors.sandbox.runtime.guest_registry import (
    UNUSED_S,
    GuestRegistry,
    LoadGuest,
    no_other_builds,
)
from rookery.actors.sandbox.runtime.guest_threads import GuestThreads, Ticker
from rookery.actors.sandbox.runtime.mentions import restored
from rookery.actors.sandbox.runtime.wasm import Engine
from rookery.actors.sandbox.runtime.watchdog import Watchdog
from rookery.actors.sandbox.sessions.operations import SessionOperations
from rookery.actors.sandbox.sessions.queue import (
    SessionJobWork,
    SessionQueue,
    SessionQueues,
    SessionRegistry,
)
from rookery.actors.sandbox.sessions.run_log import (
    RecordedRun,
    ResultBatch,
    mentions_after,
    to_entries,
    to_logs,
)
from rookery.actors.sandbox.sessions.session import Session, SessionCopy
from rookery.actors.sandbox.sessions.snapshot import (
    SavedSession,
    Snapshot,
    SnapshotHeader,
    open_snapshot,
    relabelled,
)
from rookery.actors.sandbox.validate import tools_by_name
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_session_id
from rookery.schemas.run import (
    Language,
    RunOutput,
    RunRequest,
    RunResult,
    SessionLimits,
    SessionMeta,
    check_limits,
)

__all__ = ["Sandbox"]

_MIB = 1 << 20
WAITING_THREADS_MAX: Final = 64
"""Calls of ``in_thread`` that may wait at the same time."""

log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")


class Sandbox:
    """Runs programs in sessions. ``key`` seals snapshots: a holder of the key can forge them."""

    def __init__(
        self,
        engine: Engine,
        guests: Sequence[Guest],
        key: bytes,
        *,
        live_max: int = 64,
        live_mb_max: int = 2048,
        ready: int = 4,
        threads_max: int | None = None,
        blocked_max: int = 256,
        load: LoadGuest = no_other_builds,
        unused_s: float = UNUSED_S,
    ) -> None:
        """Instances of the first guest are made in advance, of other guests after their first run.
        ``load`` finds guests of other builds, which are released when unused for ``unused_s``.
        ``threads_max`` counts threads at work; up to ``blocked_max`` more may be blocked in calls
        of tools, as long as their instances use no more than ``live_mb_max``."""
        self._key, self._engine = key, engine
        self._threads = GuestThreads(threads_max or max(8, 4 * (os.cpu_count() or 1)))
        live_bytes_max = live_mb_max * _MIB
        self._queues = SessionQueues(self._threads, live_bytes_max, self._wake)
        self._waiting_threads = ThreadPoolExecutor(WAITING_THREADS_MAX, "sandbox-aside")
        self._closed = False
        self._sessions = SessionRegistry(
            self._queues, live_max=live_max, live_bytes_max=live_bytes_max
        )
        rest, submit = self._sessions.suspend_build, self._threads.submit
        self._guests = GuestRegistry(guests, ready, submit, load, rest=rest, unused_s=unused_s)
        self._operations = SessionOperations(
            key, self._guests, self._sessions, self._compress_beside
        )
        watchdog = Watchdog(
            engine=engine,
            queues=self._queues,
            sessions=self._sessions,
            threads=self._threads,
            blocked_max=blocked_max,
            blocked_bytes_max=live_bytes_max,
        )
        self._ticker = Ticker(watchdog.tick)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """End all sessions and threads. A session without a snapshot is lost."""
        self._closed = True
        sessions = self._sessions.all()
        for queue, _ in sessions:
            self._queues.cancel(queue)
        self._queues.wait_until_idle()
        self._threads.close()
        self._ticker.close()
        self._waiting_threads.shutdown(wait=False)
        for _, session in sessions:
            session.drop_instance()
        self._guests.close()

    async def in_thread(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``call``, which may wait for the sandbox, on the sandbox's threads instead of
        asyncio's: the sandbox may wait for a build that this event loop fetches with the help of
        asyncio's threads, which must not be blocked meanwhile."""
        loop = asyncio.get_running_loop()
        try:
            called = loop.run_in_executor(self._waiting_threads, partial(call, *args, **kwargs))
        except RuntimeError:  # The executor is shut down.
            raise _closed_error() from None
        return await called

    @property
    def builds(self) -> dict[Language, str]:
        """The guest builds that new sessions begin with."""
        return self._guests.own

    def require(self, language: Language, build: str, start: int = 0) -> None:
        """Raise ``SNAPSHOT_FOREIGN_BUILD`` unless this sandbox can run sessions of the build."""
        self._guests.require(language, build, start)

    # --- sessions ---------------------------------------------------------------------------

    def create(
        self,
        session_id: str,
        *,
        seed: bytes,
        now_ms: int,
        language: Language = Language.PYTHON,
        tools: Iterable[Tool] = (),
        limits: SessionLimits = SessionLimits(),  # noqa: B008 - frozen.
    ) -> None:
        """Create a session. All its randomness comes from ``seed``."""
        check_session_id(session_id)
        check_limits(limits)
        saved = Session.begin(limits, seed, now_ms)
        self._open(session_id, language, "", tools_by_name(tools), saved)

    def rebuild(
        self,
        session_id: str,
        *,
        seed: bytes,
        created_ms: int,
        language: Language = Language.PYTHON,
        tools: Iterable[Tool] = (),
        limits: SessionLimits = SessionLimits(),  # noqa: B008 - frozen.
        build: str = "",
        base: bytes | None = None,
        runs: Sequence[RecordedRun] = (),
    ) -> None:
        """Rebuild a session from the journal: from the snapshot ``base``, without its suspended
        run, or from its creation with ``build``, and then ``runs``, which are repeated when the
        session is next used. Replaces an existing session of that id."""
        check_session_id(session_id)
        saved = Session.begin(limits, seed, created_ms)
        if base is not None:
            header, opened = open_snapshot(self._key, base, self.require, None)
            if header.language != language:
                raise Refused("INVALID_ARGUMENT", f"the snapshot is of a {header.language} session")
            saved.base, saved.history, build = opened.base, opened.history, header.build
            saved.mentioned = opened.mentioned
        mentions = mentions_after(restored(saved.mentioned), saved.history, language)
        saved.history += to_logs(runs, language, mentions)
        self._open(session_id, language, build, tools_by_name(tools), saved, replacing=True)

    def build_of(self, session_id: str) -> str:
        """The guest build of the session, fixed when it begins."""
        return self._sessions.find(session_id)[1].build

    def last_run_kept(self, session_id: str) -> bool:
        """Whether the last run left its effects on the session: then ``rebuild`` must repeat it.
        A run that was refused, stopped or cancelled leaves none."""
        return self._sessions.find(session_id)[1].last_run_kept

    def pop_artifacts(self, session_id: str) -> tuple[bytes, ...]:
        """The contents of the artifacts of the session's last run, once."""
        session = self._sessions.find(session_id)[1]
        contents, session.artifacts = session.artifacts, ()
        return contents

    def begins_at_once(self, session_id: str, language: Language, build: str) -> bool:
        """Whether a session of this build can begin without waiting: its guest is loaded, and no
        session of that id has to be removed first."""
        is_own = build in ("", self.builds.get(language))
        return is_own and self._sessions.get(session_id) is None

    def run_instructions(self, session_id: str) -> int:
        """The instructions that the session's waiting run has executed."""
        run = self._sessions.find(session_id)[1].guest_run
        return 0 if run is None else run.tally.fuel

    def run_output(self, session_id: str) -> RunOutput:
        """The output of the session's waiting run."""
        run = self._sessions.find(session_id)[1].guest_run
        return RunOutput() if run is None else run.tally.output

    def destroy(self, session_id: str) -> None:
        """Remove a session and cancel its run."""
        queue, session = self._sessions.remove(session_id)
        self._queues.cancel(queue)
        self._submit(queue, partial(self._operations.drop_instance, session)).result()

    def sessions(self) -> list[SessionMeta]:
        return [session.meta() for _, session in self._sessions.all()]

    @property
    def suspended_bytes(self) -> int:
        """Memory of the suspended sessions: images and logs of runs."""
        return self._sessions.suspended_bytes

    def eviction_candidates(
        self, resting_bytes_max: int, spared: Callable[[str], bool]
    ) -> list[str]:
        """The sessions suspended for longest that hold the memory above this limit, without those
        that are ``spared``. The caller destroys them if it can rebuild them later."""
        return self._sessions.eviction_candidates(resting_bytes_max, spared)

    # --- runs -------------------------------------------------------------------------------

    def run(
        self,
        request: RunRequest,
        *,
        now_ms: int,
        answer: CallTool = suspend,
        tools: Iterable[Tool] | None = None,
    ) -> Outcome:
        """``submit``, and wait for the outcome."""
        return self.submit(request, now_ms=now_ms, answer=answer, tools=tools).result()

    def submit(
        self,
        request: RunRequest,
        *,
        now_ms: int,
        answer: CallTool = suspend,
        tools: Iterable[Tool] | None = None,
        known: Sequence[ResultBatch] = (),
        on_output: OnOutput = ignore_output,
        here: bool = False,
    ) -> Future[Outcome]:
        """Start a run. ``answer`` returns results of calls, or the run is suspended until
        ``resume``. ``on_output`` gets the output as it is printed. ``tools`` replaces the session's
        tools from this run on. ``known`` has the results that an interrupted run had received: the
        run is repeated with them. ``here``: this thread may execute the run for a few milliseconds,
        now and whenever it brings the pending result of a call."""
        if request.validate_only:
            return cast("Future[Outcome]", self._check(request, tools))
        queue, session = self._sessions.find(request.session_id)
        offered = None if tools is None else tools_by_name(tools)
        work = partial(
            self._operations.run,
            session,
            request,
            offered=offered,
            answer=answer,
            on_output=on_output,
            now_ms=now_ms,
            known=to_entries(known),
        )
        return self._submit(queue, work, runs=True, here=here)

    def resume(
        self,
        session_id: str,
        answers: Mapping[int, ToolResult] = {},
        *,
        advance_ms: int = 0,
        answer: CallTool = suspend,
    ) -> Outcome:
        """``submit_resume``, and wait for the outcome."""
        return self.submit_resume(
            session_id, answers, advance_ms=advance_ms, answer=answer
        ).result()

    def submit_resume(
        self,
        session_id: str,
        answers: Mapping[int, ToolResult],
        *,
        advance_ms: int = 0,
        answer: CallTool = suspend,
        on_output: OnOutput = ignore_output,
        here: bool = False,
    ) -> Future[Outcome]:
        """Continue a suspended run with results by call id, or with time that passed. ``on_output``
        and ``here`` as for ``submit``."""
        queue, session = self._sessions.find(session_id)
        work = partial(
            self._operations.resume,
            session,
            answers,
            advance_ms,
            answer=answer,
            on_output=on_output,
        )
        return self._submit(queue, work, runs=True, here=here)

    def cancel(self, session_id: str) -> RunResult | None:
        """Cancel the session's run. Returns the result of a suspended run; the caller of a
        running one gets it as its outcome."""
        queue, session = self._sessions.find(session_id)
        self._queues.cancel(queue)
        result: RunResult | None = self._submit(
            queue, partial(self._operations.cancel, session)
        ).result()
        return result

    def validate(self, request: RunRequest, tools: Iterable[Tool] = ()) -> RunResult:
        """Check a request without running it or changing its session."""
        return self._check(request, tools).result()

    def files(self, session_id: str, request: FilesStep) -> Step:
        """Read files of a session that is used for nothing else afterwards."""
        queue, session = self._sessions.find(session_id)
        work = partial(self._operations.files, session, msgspec.json.encode(request))
        ended: Step = self._submit(queue, work).result()
        return ended

    # --- snapshots --------------------------------------------------------------------------

    def snapshot(self, session_id: str, *, limits: SessionLimits | UnsetType = UNSET) -> Snapshot:
        """Seal the session, including a suspended run. ``limits`` enter the header of the
        snapshot for the caller that restores it."""
        queue, session = self._sessions.find(session_id)
        work = partial(self._operations.seal, session, limits)
        taken: Snapshot = self._submit(queue, work).result()
        return taken

    def copy(
        self, session_id: str, *, limits: SessionLimits | UnsetType = UNSET
    ) -> Future[SessionCopy]:
        """Copy the session before its next run. The copy is to be passed to ``seal``, while the
        session goes on."""
        queue, session = self._sessions.find(session_id)
        return self._submit(queue, partial(self._operations.copy, session, limits))

    def seal(self, copy: SessionCopy) -> Snapshot:
        """Compress and seal a copy, on the caller's thread."""
        image = None
        try:
            image = copy.compressed()
            return self._operations.seal_copy(copy, image)
        finally:
            self._adopt(copy, image)

    def restore(
        self, data: bytes, *, tools: Iterable[Tool] = (), session_id: str | None = None
    ) -> str:
        """Restore a session under its own id or another; replaces an existing session."""
        offered = tools_by_name(tools)
        header, saved = open_snapshot(self._key, data, self.require, offered)
        target = check_session_id(session_id or header.session_id)
        self._open(target, header.language, header.build, offered, saved, replacing=True)
        return target

    def inspect(self, data: bytes, tools: Iterable[Tool]) -> SnapshotHeader:
        """The header of a snapshot; ``Refused`` if no session can start from it here."""
        header, _ = open_snapshot(self._key, data, self.require, tools_by_name(tools))
        return header

    def relabel(self, data: bytes, **changed: Any) -> Snapshot:
        """The snapshot with another header."""
        return relabelled(self._key, data, **changed)

    # --- inside -----------------------------------------------------------------------------

    def _open(
        self,
        session_id: str,
        language: Language,
        build: str,
        tools: dict[str, Tool],
        saved: SavedSession,
        *,
        replacing: bool = False,
    ) -> None:
        found = self._guests.pool(language, build).guest.build
        if replacing and self._sessions.get(session_id) is not None:
            self.destroy(session_id)
        instances = self._guests.source(language, found)
        session = Session(session_id, (language, found), tools, saved, instances)
        self._sessions.add(session)

    def _submit(
        self, queue: SessionQueue, work: SessionJobWork, *, runs: bool = False, here: bool = False
    ) -> Future[Any]:
        if self._closed:
            raise _closed_error()
        home = threading.get_ident() if here and self._engine.has_fibers else None
        return self._queues.submit(queue, work, runs=runs, home=home)

    def _compress_beside(self, copy: SessionCopy) -> None:
        """Compress a copy on a thread, because that takes longer than many runs."""

        def compress() -> None:
            image = None
            try:
                image = copy.compressed()
            except Exception:  # The session keeps its logs, and is copied again after its next run.
                log.exception("session not compressed", extra={"session": copy.session.id})
            finally:
                self._adopt(copy, image)

        self._threads.submit(compress)

    def _adopt(self, copy: SessionCopy, image: Image | None) -> None:
        """Let the copy's session continue from its image, if the session still exists."""
        found = self._sessions.get(copy.session.id)
        if found is not None and found[1] is copy.session and not self._closed:
            with suppress(Refused):  # The sandbox is closed meanwhile.
                self._submit(found[0], partial(self._operations.adopt, copy, image))

    def _wake(self) -> None:
        self._ticker.wake()

    def _check(self, request: RunRequest, tools: Iterable[Tool] | None) -> Future[RunResult]:
        offered = {} if tools is None else tools_by_name(tools)
        if tools is None and (found := self._sessions.get(request.session_id)) is not None:
            offered = found[1].tools
        return self._submit(SessionQueue(None), partial(self._operations.check, request, offered))


def _closed_error() -> Refused:
    return Refused("NODE_DRAINING", "the sandbox is closed")
