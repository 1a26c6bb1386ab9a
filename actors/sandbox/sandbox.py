"""The sandbox: sessions of any number, threads of a few, instances of as many as memory allows.

Owns what may be asked of it, and brings that into the order of its sessions: every method may be
called from any thread, and those of one session take turns. What is done in a session then is
``session_work``'s, which are live is ``sessions``'s, and what takes too long is ended by ``watch``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Final, ParamSpec, Self, TypeVar, cast

import wasmtime
from msgspec import UNSET, UnsetType

from rookery.actors.sandbox.contract import CallTool, Guest, Outcome, Tool, ToolResult, suspend
from rookery.actors.sandbox.runtime.guest_registry import (
    UNUSED_S,
    GuestRegistry,
    LoadGuest,
    no_other_builds,
)
from rookery.actors.sandbox.runtime.guest_threads import GuestThreads
from rookery.actors.sandbox.runtime.ticker import Ticker
from rookery.actors.sandbox.runtime.watchdog import Watchdog
from rookery.actors.sandbox.sessions.operations import SessionOperations
from rookery.actors.sandbox.sessions.queue import SessionJobWork, SessionQueue, SessionQueues
from rookery.actors.sandbox.sessions.recorded_runs import (
    RecordedRun,
    ResultBatch,
    to_entries,
    to_logs,
)
from rookery.actors.sandbox.sessions.registry import SessionRegistry
from rookery.actors.sandbox.sessions.session import Session
from rookery.actors.sandbox.sessions.snapshot import SavedSession, Snapshot, open_snapshot
from rookery.actors.sandbox.validate import tools_by_name
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_session_id
from rookery.schemas.limits import check_limits
from rookery.schemas.run import Language, RunRequest, RunResult, SessionLimits, SessionMeta

__all__ = ["Sandbox"]

_MIB = 1 << 20
WAITING_THREADS_MAX: Final = 64
"""Calls of event loops that are waited for at once."""

P = ParamSpec("P")
T = TypeVar("T")


class Sandbox:
    """Runs programs in sessions. ``key`` seals snapshots: who has it can make a session say
    anything."""

    def __init__(
        self,
        engine: wasmtime.Engine,
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
        """Instances of the first guest are made before anybody asks, of others after the first run.
        ``load`` finds those of other builds; they go when no run was on them for ``unused_s``.
        ``threads_max`` is of those that work: up to ``blocked_max`` more stand still in the
        calls of their programs, as long as these hold no more than ``live_mb_max``, too."""
        self._key = key
        self._threads = GuestThreads(threads_max or max(8, 4 * (os.cpu_count() or 1)))
        self._queues = SessionQueues(self._threads)
        self._waiting_threads = ThreadPoolExecutor(WAITING_THREADS_MAX, "sandbox-aside")
        self._closed = False
        live_bytes_max = live_mb_max * _MIB
        self._sessions = SessionRegistry(
            self._queues, live_max=live_max, live_bytes_max=live_bytes_max
        )
        rest, submit = self._sessions.suspend_build, self._threads.submit
        self._guests = GuestRegistry(guests, ready, submit, load, rest=rest, unused_s=unused_s)
        self._operations = SessionOperations(key, self._guests, self._sessions)
        watch = Watchdog(
            engine=engine,
            queues=self._queues,
            sessions=self._sessions,
            threads=self._threads,
            blocked_max=blocked_max,
            blocked_bytes_max=live_bytes_max,
        )
        self._ticker = Ticker(watch.tick)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Sessions end with the sandbox; what should outlive it was snapshotted."""
        self._closed = True
        sessions = self._sessions.all()
        for lane, _ in sessions:
            lane.cancel()
        self._threads.close()
        self._ticker.close()
        self._waiting_threads.shutdown(wait=False)
        for _, session in sessions:
            session.drop_instance()
        self._guests.close()

    async def in_thread(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """``call``, which may wait for the sandbox, from an event loop and not on asyncio's own
        threads: the sandbox may wait for a build, which that loop may be fetching, and what has
        come is digested on those. None of them may be waiting for the build meanwhile."""
        loop = asyncio.get_running_loop()
        try:
            called = loop.run_in_executor(self._waiting_threads, partial(call, *args, **kwargs))
        except RuntimeError:  # It takes no more work.
            raise _closed_error() from None
        return await called

    @property
    def builds(self) -> dict[Language, str]:
        """What new sessions of this sandbox begin with, and stay on."""
        return self._guests.own

    def require(self, language: Language, build: str, start: int = 0) -> None:
        """``SNAPSHOT_FOREIGN_BUILD`` unless sessions of this build can go on here."""
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
        """A new session. All its randomness comes from ``seed``."""
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
        """A session as its record tells of it: the snapshot ``base``, without a run that waits in
        it, or else the session as it was created with ``build``, if it is given; and the runs after
        that. They are run again when the session is next used. An existing one is replaced."""
        check_session_id(session_id)
        saved = Session.begin(limits, seed, created_ms)
        if base is not None:
            header, kept = open_snapshot(self._key, base, self.require, None)
            if header.language != language:
                raise Refused("INVALID_ARGUMENT", f"the snapshot is of a {header.language} session")
            saved.base, saved.history, build = kept.base, kept.history, header.build
        saved.history += to_logs(runs)
        self._open(session_id, language, build, tools_by_name(tools), saved, replacing=True)

    def build_of(self, session_id: str) -> str:
        """What the session began with, and stays on."""
        return self._sessions.find(session_id)[1].build

    def last_run_kept(self, session_id: str) -> bool:
        """Whether the run that ended last left its effects on the session: then it is one of the
        ``runs`` to reopen it with. One that was refused, stopped or cancelled did not."""
        return self._sessions.find(session_id)[1].last_run_kept

    def destroy(self, session_id: str) -> None:
        """Forget a session; a run of it is cancelled."""
        lane, session = self._sessions.remove(session_id)
        lane.cancel()
        self._submit(lane, partial(self._operations.drop_instance, session)).result()

    def sessions(self) -> list[SessionMeta]:
        return [session.meta() for _, session in self._sessions.all()]

    @property
    def suspended_bytes(self) -> int:
        """What the sessions hold that have no instance: images, and logs of runs."""
        return self._sessions.suspended_bytes

    def eviction_candidates(
        self, resting_bytes_max: int, spared: Callable[[str], bool]
    ) -> list[str]:
        """The sessions that rest for longest, as many as hold what is beyond this; without those
        that are ``spared``. To destroy them is for who can bring them back."""
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
    ) -> Future[Outcome]:
        """Start a run. Calls are answered by ``answer``, or else the run waits for ``resume``.
        ``tools`` replaces what the session offers from this run on. ``known`` is what a run that
        was interrupted had been told: it is told that again, and goes on from there."""
        if request.validate_only:
            return cast("Future[Outcome]", self._check(request, tools))
        lane, session = self._sessions.find(request.session_id)
        offered = None if tools is None else tools_by_name(tools)
        work = partial(
            self._operations.run,
            session,
            request,
            offered=offered,
            answer=answer,
            now_ms=now_ms,
            known=to_entries(known),
        )
        return self._submit(lane, work)

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
    ) -> Future[Outcome]:
        """Continue a waiting run with answers by call id, or with time that passed."""
        lane, session = self._sessions.find(session_id)
        return self._submit(
            lane, partial(self._operations.resume, session, answers, advance_ms, answer)
        )

    def cancel(self, session_id: str) -> RunResult | None:
        """End the session's run, at work, in a tool or waiting. The outcome of one at work tells
        of it; that of a waiting one is returned here."""
        lane, session = self._sessions.find(session_id)
        lane.cancel()
        result: RunResult | None = self._submit(
            lane, partial(self._operations.cancel, session)
        ).result()
        return result

    def validate(self, request: RunRequest, tools: Iterable[Tool] = ()) -> RunResult:
        """What is wrong with a request, without running any of it or touching its session."""
        return self._check(request, tools).result()

    # --- snapshots --------------------------------------------------------------------------

    def snapshot(self, session_id: str, *, limits: SessionLimits | UnsetType = UNSET) -> Snapshot:
        """The session as it stands, waiting run included. ``limits`` are for whoever restores it
        elsewhere, and mean nothing here."""
        lane, session = self._sessions.find(session_id)
        work = partial(self._operations.seal, session, limits)
        taken: Snapshot = self._submit(lane, work).result()
        return taken

    def restore(
        self, data: bytes, *, tools: Iterable[Tool] = (), session_id: str | None = None
    ) -> str:
        """Bring a session back, under its own id or another; an existing one is replaced."""
        offered = tools_by_name(tools)
        header, saved = open_snapshot(self._key, data, self.require, offered)
        target = check_session_id(session_id or header.session_id)
        self._open(target, header.language, header.build, offered, saved, replacing=True)
        return target

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
        take = partial(self._guests.instance, language, found)
        session = Session(session_id, (language, found), tools, saved, take)
        self._sessions.add(session)

    def _submit(self, lane: SessionQueue, work: SessionJobWork) -> Future[Any]:
        if self._closed:
            raise _closed_error()
        future = self._queues.submit(lane, work)
        self._ticker.wake()
        return future

    def _check(self, request: RunRequest, tools: Iterable[Tool] | None) -> Future[RunResult]:
        offered = {} if tools is None else tools_by_name(tools)
        if tools is None and (found := self._sessions.get(request.session_id)) is not None:
            offered = found[1].tools
        return self._submit(SessionQueue(None), partial(self._operations.check, request, offered))


def _closed_error() -> Refused:
    return Refused("NODE_DRAINING", "the sandbox is closed")
