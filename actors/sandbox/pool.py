"""The sandbox: sessions of any number, threads of a few, instances of as many as memory allows.

Owns who works when, which sessions are kept live and which rest as images, and the beat that ends
what takes too long. Every method may be called from any thread; those of one session take turns.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Self, cast

import msgspec
import wasmtime
from msgspec import UNSET, UnsetType

from rookery.actors.sandbox.builds import UNUSED_S, Builds, LoadGuest, nowhere
from rookery.actors.sandbox.contract import (
    Answer,
    AnswerCall,
    Guest,
    Instance,
    Outcome,
    Step,
    Stopped,
    Tool,
    suspend,
)
from rookery.actors.sandbox.jobs import Job, Lane, Lanes
from rookery.actors.sandbox.recorded import Batch, RecordedRun, entries_of, history_of
from rookery.actors.sandbox.results import refused, result_of
from rookery.actors.sandbox.session import CancelledEarly, Session
from rookery.actors.sandbox.snapshot import (
    SavedSession,
    Snapshot,
    SnapshotHeader,
    open_snapshot,
    seal,
)
from rookery.actors.sandbox.turn import Suspended, Turn, driven
from rookery.actors.sandbox.validate import check_request, limits_in_force, tools_by_name
from rookery.actors.sandbox.workers import Beat, Workers
from rookery.schemas.errors import Refused
from rookery.schemas.ids import check_session_id
from rookery.schemas.limits import check_limits
from rookery.schemas.run import (
    SNAPSHOT_VERSION,
    ErrorObject,
    Language,
    RunRequest,
    RunResult,
    RunStatus,
    SessionLimits,
    SessionMeta,
)

__all__ = ["Sandbox"]

_MIB = 1 << 20


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
        load: LoadGuest = nowhere,
        unused_s: float = UNUSED_S,
    ) -> None:
        """Instances of the first guest are made before anybody asks, of others after the first run.
        ``load`` finds those of other builds; they go when no run was on them for ``unused_s``.
        ``threads_max`` is of those that work: up to ``blocked_max`` more stand still in the
        calls of their programs, as long as these hold no more than ``live_mb_max``, too."""
        self._engine, self._key, self._blocked_max = engine, key, blocked_max
        self._live_max, self._live_bytes_max = live_max, live_mb_max * _MIB
        self._workers = Workers(threads_max or max(8, 4 * (os.cpu_count() or 1)))
        self._lanes = Lanes(self._workers)
        self._lock, self._closed = threading.Lock(), False
        self._sessions: dict[str, Lane] = {}
        self._live: OrderedDict[str, int] = OrderedDict()
        self._beat = Beat(self._strike)
        self._builds = Builds(
            guests, ready, self._workers.submit, load, rest=self._rest_on, unused_s=unused_s
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Sessions end with the sandbox; what should outlive it was snapshotted."""
        with self._lock:
            self._closed = True
            lanes = list(self._sessions.values())
        for lane in lanes:
            lane.cancel()
        self._workers.close()
        self._beat.close()
        for lane in lanes:
            _session(lane).drop_instance()
        self._builds.close()

    @property
    def builds(self) -> dict[Language, str]:
        """What new sessions of this sandbox begin with, and stay on."""
        return self._builds.own

    def require(self, language: Language, build: str, start: int = 0) -> None:
        """``SNAPSHOT_FOREIGN_BUILD`` unless sessions of this build can go on here."""
        self._builds.require(language, build, start)

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

    def reopen(
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
        saved.history += history_of(runs)
        self._open(session_id, language, build, tools_by_name(tools), saved, replacing=True)

    def build_of(self, session_id: str) -> str:
        """What the session began with, and stays on."""
        return _session(self._lane(session_id)).build

    def limits(self, session_id: str) -> SessionLimits:
        """Of a run whose request names none."""
        return _session(self._lane(session_id)).limits

    def last_run_counts(self, session_id: str) -> bool:
        """Whether the run that ended last left its effects on the session: then it is one of the
        ``runs`` to reopen it with. One that was refused, stopped or cancelled did not."""
        return _session(self._lane(session_id)).last_run_counts

    def destroy(self, session_id: str) -> None:
        """Forget a session; a run of it is cancelled."""
        with self._lock:
            lane = self._sessions.pop(session_id, None)
            self._live.pop(session_id, None)
        if lane is None:
            raise _unknown(session_id)
        lane.cancel()
        self._submit(lane, _drop(lane)).result()

    def sessions(self) -> list[SessionMeta]:
        with self._lock:
            lanes = [lane.session for lane in self._sessions.values()]
        return [session.meta() for session in lanes if session is not None]

    # --- runs -------------------------------------------------------------------------------

    def run(
        self,
        request: RunRequest,
        *,
        now_ms: int,
        answer: AnswerCall = suspend,
        tools: Iterable[Tool] | None = None,
    ) -> Outcome:
        """``submit``, and wait for the outcome."""
        return self.submit(request, now_ms=now_ms, answer=answer, tools=tools).result()

    def submit(
        self,
        request: RunRequest,
        *,
        now_ms: int,
        answer: AnswerCall = suspend,
        tools: Iterable[Tool] | None = None,
        known: Sequence[Batch] = (),
    ) -> Future[Outcome]:
        """Start a run. Calls are answered by ``answer``, or else the run waits for ``resume``.
        ``tools`` replaces what the session offers from this run on. ``known`` is what a run that
        was interrupted had been told: it is told that again, and goes on from there."""
        if request.validate_only:
            return cast("Future[Outcome]", self._check(request, tools))
        lane = self._lane(request.session_id)
        session = _session(lane)
        offered = None if tools is None else tools_by_name(tools)
        entries = entries_of(known)

        def work(job: Job) -> None:
            session.last_run_counts = False
            if refusal := self._refusal(request, session):
                _finish(job, refusal)
                return
            if offered is not None and session.turn is None:
                session.tools = offered
            self._drive(session, job, session.start(request, answer, now_ms, entries))

        return self._submit(lane, work)

    def resume(
        self,
        session_id: str,
        answers: Mapping[int, Answer] = {},
        *,
        advance_ms: int = 0,
        answer: AnswerCall = suspend,
    ) -> Outcome:
        """``submit_resume``, and wait for the outcome."""
        return self.submit_resume(
            session_id, answers, advance_ms=advance_ms, answer=answer
        ).result()

    def submit_resume(
        self,
        session_id: str,
        answers: Mapping[int, Answer],
        *,
        advance_ms: int = 0,
        answer: AnswerCall = suspend,
    ) -> Future[Outcome]:
        """Continue a waiting run with answers by call id, or with time that passed."""
        lane = self._lane(session_id)
        session = _session(lane)

        def work(job: Job) -> None:
            self._drive(session, job, session.resume(answers, advance_ms, answer))

        return self._submit(lane, work)

    def cancel(self, session_id: str) -> RunResult | None:
        """End the session's run, at work, in a tool or waiting. The outcome of one at work tells
        of it; that of a waiting one is returned here."""
        lane = self._lane(session_id)
        session = _session(lane)
        lane.cancel()

        def work(job: Job) -> None:
            result = None
            if (turn := session.turn) is not None:
                turn.cancelled = True
                result = session.give_up(turn)
            _finish(job, result)

        result: RunResult | None = self._submit(lane, work).result()
        return result

    def validate(self, request: RunRequest, tools: Iterable[Tool] = ()) -> RunResult:
        """What is wrong with a request, without running any of it or touching its session."""
        return self._check(request, tools).result()

    # --- snapshots --------------------------------------------------------------------------

    def snapshot(self, session_id: str, *, limits: SessionLimits | UnsetType = UNSET) -> Snapshot:
        """The session as it stands, waiting run included. ``limits`` are for whoever restores it
        elsewhere, and mean nothing here."""
        lane = self._lane(session_id)
        session = _session(lane)

        def work(job: Job) -> None:
            _finish(job, self._seal(session, limits))

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
        found = self._builds.shelf(language, build).guest.build
        if replacing and session_id in self._sessions:
            self.destroy(session_id)
        take = partial(self._builds.take, language, found)
        session = Session(session_id, (language, found), tools, saved, take)
        with self._lock:
            if session_id in self._sessions:
                raise Refused("SESSION_IDENTITY_IN_USE", f"there is a session {session_id}")
            self._sessions[session_id] = Lane(session)

    def _lane(self, session_id: str) -> Lane:
        lane = self._sessions.get(session_id)
        if lane is None:
            raise _unknown(session_id)
        return lane

    def _submit(self, lane: Lane, work: Callable[[Job], None]) -> Future[Any]:
        if self._closed:
            raise Refused("NODE_DRAINING", "the sandbox is closed")
        future = self._lanes.submit(lane, work)
        self._beat.want()
        return future

    def _refusal(self, request: RunRequest, session: Session) -> RunResult | None:
        try:
            check_request(request)
            if request.language != session.language:
                text = f"session {session.id} speaks {session.language}"
                raise Refused("UNSUPPORTED_FEATURE", text, hint="run it in another session")
        except Refused as refusal:
            return refused(refusal)
        return None

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
            outcome = msgspec.structs.replace(outcome, snapshot_id=self._seal(session).id)
        job.future.set_result(outcome)
        if session.checkpoint_is_due:
            session.checkpoint()
        self._note_live(session)
        self._builds.used(session.language, session.build)

    def _seal(self, session: Session, limits: SessionLimits | UnsetType = UNSET) -> Snapshot:
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

    def _note_live(self, session: Session) -> None:
        """Keep the sessions used last; let the others rest."""
        resting = []
        with self._lock:
            self._live.pop(session.id, None)
            if session.instance is not None and session.id in self._sessions:
                self._live[session.id] = session.instance.memory_bytes
            while len(self._live) > self._live_max or (
                sum(self._live.values()) > self._live_bytes_max and len(self._live) > 1
            ):
                oldest, _ = self._live.popitem(last=False)
                resting.append(self._sessions[oldest])
        for lane in resting:
            self._lanes.submit(lane, _rest(lane))

    def _rest_on(self, build: str) -> None:
        """The build is let go: no session keeps an instance of it."""
        with self._lock:
            on = [lane for lane in self._sessions.values() if _session(lane).build == build]
            resting = [lane for lane in on if self._live.pop(_session(lane).id, None) is not None]
        for lane in resting:
            self._lanes.submit(lane, _rest(lane))

    def _strike(self) -> bool:
        """One beat: guests look at their time, runs that are lost in a tool are ended, and threads
        that stand still in one do not keep others from work."""
        self._engine.increment_epoch()
        running = self._lanes.running()
        blocked, held_bytes = [], 0
        for job, lane in running:
            if (turn := job.turn) is None or turn.asking is None:
                continue
            if turn.stopwatch.wall_is_over or turn.cancelled:
                self._abandon(job, lane, turn)
                continue
            held_bytes += turn.held_bytes
            if job.thread is not None and held_bytes <= self._live_bytes_max:
                blocked.append(job.thread)
        self._workers.lend(blocked[: self._blocked_max])
        return bool(running)

    def _abandon(self, job: Job, lane: Lane, turn: Turn) -> None:
        if job.claim():
            turn.abandoned = True
            outcome = _session(lane).abandon(turn)
            self._lanes.lose(job)
            job.future.set_result(outcome)

    def _check(self, request: RunRequest, tools: Iterable[Tool] | None) -> Future[RunResult]:
        offered = {} if tools is None else tools_by_name(tools)
        if tools is None and (lane := self._sessions.get(request.session_id)) is not None:
            offered = _session(lane).tools

        def work(job: Job) -> None:
            try:
                check_request(request)
                limits = limits_in_force(request, SessionLimits())
                shelf = self._builds.shelf(request.language)
            except Refused as refusal:
                _finish(job, refused(refusal))
                return
            turn = job.turn = shelf.check_turn(request.code, offered, limits)
            step = shelf.check(turn)
            _finish(job, result_of(step, turn.tally, turn.stopwatch, limits))

        return self._submit(Lane(None), work)


def _session(lane: Lane) -> Session:
    assert lane.session is not None
    return lane.session


def _is_ok(outcome: Outcome) -> bool:
    return isinstance(outcome, RunResult) and outcome.status is RunStatus.OK


def _finish(job: Job, value: object) -> None:
    if job.claim():
        job.future.set_result(value)


def _rest(lane: Lane) -> Callable[[Job], None]:
    def work(job: Job) -> None:
        _session(lane).rest()
        _finish(job, None)

    return work


def _drop(lane: Lane) -> Callable[[Job], None]:
    def work(job: Job) -> None:
        _session(lane).drop_instance()
        _finish(job, None)

    return work


def _unknown(session_id: str) -> Refused:
    return Refused("SESSION_NOT_FOUND", f"there is no session {session_id[:80]}")
