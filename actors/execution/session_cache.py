"""``SessionCache``: the sessions in a node's sandbox, and how they are brought up to date.

The sandbox's copy of a session is used only while it is known to match the journal; otherwise the
session is rebuilt from its last snapshot and the runs after that. Occasional snapshots bound what a
rebuild replays. Idle sessions have a memory limit; the longest idle are evicted first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import UNSET

from rookery.actors.execution.history import PastRun, RunHistoryReader, SessionHistory
from rookery.actors.kernel import NO_METRICS, AskActor, KernelMetrics
from rookery.actors.messages import ActiveRunView
from rookery.actors.sandbox import Sandbox, Tool
from rookery.actors.sandbox.sessions import ResultBatch
from rookery.actors.session_snapshots import RecordSnapshot, SnapshotState
from rookery.bus.ports import Blobs
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.run import SNAPSHOT_BYTES_MAX, RunResult

__all__ = ["SessionCache"]

log = logging.getLogger(__name__)

TOO_LARGE = "PAYLOAD_TOO_LARGE"
SNAPSHOT_AFTER_MS = 200
SNAPSHOT_AFTER_MS_PER_MIB = 25
"""The cost of storing a large snapshot; a shorter run time is replayed faster."""
SNAPSHOT_AFTER_RUNS = 100
IDLE_BYTES_MAX = 256 << 20
"""About a hundred busy sessions or 40,000 small ones."""


class _CachedPosition(NamedTuple):
    """What the sandbox's copy of a session contains."""

    generation: int
    runs: int
    since_ms: int = 0
    """Program time of the runs since the last snapshot."""
    since_runs: int = 0
    snapshot_bytes: int = 0
    """Size of the last snapshot."""

    @property
    def is_snapshot_due(self) -> bool:
        enough_ms = max(SNAPSHOT_AFTER_MS, SNAPSHOT_AFTER_MS_PER_MIB * self.snapshot_bytes >> 20)
        return self.since_ms >= enough_ms or self.since_runs >= SNAPSHOT_AFTER_RUNS


_UNKNOWN = _CachedPosition(-1, -1)
"""The sandbox may have the session, in an unknown state."""


class SessionCache:
    """One per node; lives on the bus's loop."""

    def __init__(
        self,
        sandbox: Sandbox,
        reader: RunHistoryReader,
        blobs: Blobs,
        ask: AskActor,
        *,
        resting_bytes_max: int = IDLE_BYTES_MAX,
        snapshot_bytes_max: int = SNAPSHOT_BYTES_MAX,
        metrics: KernelMetrics = NO_METRICS,
    ) -> None:
        self._sandbox, self._reader, self._blobs, self._ask = sandbox, reader, blobs, ask
        self._idle_bytes_max = resting_bytes_max
        self._snapshot_bytes_max, self._metrics = snapshot_bytes_max, metrics
        self._positions: dict[str, _CachedPosition] = {}
        """The sessions given to the sandbox and not evicted since."""

    async def prepare(
        self, session: str, view: ActiveRunView, tools: Sequence[Tool]
    ) -> Sequence[ResultBatch]:
        """Bring the sandbox's session to the run's beginning; the run's earlier results."""
        position = self._positions.get(session)
        if position and position[:2] == (view.generation, view.runs_before) and not view.steps:
            return await self._reader.forked_answers(view.forked)
        self._positions[session] = _UNKNOWN
        history = await self._history(session, view)
        past = [run for run in history.runs if run.run_id != view.run_id]
        await self._rebuild(session, view, tools, history, past)
        snapshot_bytes = 0 if history.base is None else history.base.size_bytes
        position = _CachedPosition(view.generation, view.runs_before, 0, len(past), snapshot_bytes)
        self._positions[session] = position
        running = [run for run in history.runs if run.run_id == view.run_id]
        return running[-1].batches if running else await self._reader.forked_answers(view.forked)

    async def require(self, environment: RunEnvironment) -> None:
        """Raise ``Refused`` if the guest build of the run's session is unavailable."""
        await self._sandbox.in_thread(
            self._sandbox.require, environment.language, environment.build
        )

    async def restore_parked(
        self, session: str, view: ActiveRunView, tools: Sequence[Tool]
    ) -> None:
        """Restore the session from the parked run's snapshot."""
        self._positions[session] = _UNKNOWN
        data = await self._blobs.get(view.snapshot_blob)
        await self._sandbox.in_thread(self._sandbox.restore, data, tools=tools, session_id=session)
        self._positions[session] = _CachedPosition(view.generation, view.runs_before)

    async def park(self, session: str, environment: RunEnvironment) -> tuple[str, str]:
        """Store the session with its waiting run and evict it; the snapshot's id and blob."""
        snapshot_id, blob, _ = await self.store_snapshot(session, environment)
        await self.evict(session)
        return snapshot_id, blob

    async def store_snapshot(
        self, session: str, environment: RunEnvironment
    ) -> tuple[str, str, int]:
        """Store the session as a blob; the snapshot's id, blob and size."""
        sandbox = self._sandbox
        snapshot = await sandbox.in_thread(
            sandbox.snapshot, session, limits=environment.session_limits
        )
        try:
            blob = await self._blobs.put(snapshot.data, self._snapshot_bytes_max)
        except Refused as refusal:
            raise Refused(
                refusal.code,
                f"session {session} cannot be stored: {refusal.message}",
                hint="delete variables that its programs need no longer",
            ) from None
        self._metrics.snapshot_stored(len(snapshot.data))
        return snapshot.id, blob, len(snapshot.data)

    async def on_run_ended(
        self, session: str, view: ActiveRunView, result: RunResult, *, kept: bool
    ) -> None:
        """Note a recorded end, and store a snapshot if a rebuild would take long by now."""
        position = self._positions.pop(session, None)
        if position is None:
            return
        position = position._replace(runs=view.runs_before + 1)
        if kept:
            tools_ms = sum(call.duration_ms for call in result.external_calls)
            used_ms = max(0, result.metrics.duration_ms - tools_ms)
            position = position._replace(
                since_ms=position.since_ms + used_ms, since_runs=position.since_runs + 1
            )
        self._positions[session] = position
        if position.is_snapshot_due:
            self._positions[session] = await self._try_record_snapshot(session, view, position)

    async def _try_record_snapshot(
        self, session: str, view: ActiveRunView, position: _CachedPosition
    ) -> _CachedPosition:
        """Store a snapshot. After a failure, which loses nothing, the next run tries again; a
        session that is too large waits for more runs."""
        try:
            snapshot_bytes = await self._record_snapshot(session, view)
        except CodedError as error:
            fields = {"session": session, "code": error.code}
            log.warning("session snapshot not stored", extra=fields)
            if error.code != TOO_LARGE:
                return position
            snapshot_bytes = self._snapshot_bytes_max
        return position._replace(since_ms=0, since_runs=0, snapshot_bytes=snapshot_bytes)

    async def _record_snapshot(self, session: str, view: ActiveRunView) -> int:
        """Store the session as the run left it and record the snapshot; its size."""
        base = await self._reader.last_snapshot(session, view.generation)
        runs = await self._reader.runs(session, view.generation, base)
        ended = [run for run in runs if run.run_id == view.run_id and run.ended_at_sequence]
        if not ended:
            raise Failed("FACT_UNKNOWN", f"run {view.run_id} has no end in the journal")
        environment = ended[0].environment
        snapshot_id, blob, size = await self.store_snapshot(session, environment)
        command = RecordSnapshot(
            generation=view.generation,
            snapshot_id=snapshot_id,
            blob=blob,
            language=environment.language,
            build=self._sandbox.build_of(session),
            after_sequence=ended[0].ended_at_sequence,
            size_bytes=size,
            limits=environment.session_limits,
        )
        await self._ask("sandbox", session, command, SnapshotState)
        return size

    async def evict(self, session: str) -> None:
        """Drop the session from the sandbox, because it may be outdated or must make room."""
        if self._positions.pop(session, None) is not None:
            try:
                await self._sandbox.in_thread(self._sandbox.destroy, session)
            except Refused:  # The sandbox has dropped it already.
                return

    def eviction_candidates(self, busy: Callable[[str], bool]) -> Sequence[str]:
        """Idle sessions to evict, to stay within the memory limit."""
        positions = self._positions

        def is_spared(session: str) -> bool:
            return session not in positions or busy(session)

        return self._sandbox.eviction_candidates(self._idle_bytes_max, is_spared)

    async def _history(self, session: str, view: ActiveRunView) -> SessionHistory:
        """The session's history; a new generation has only its initial snapshot."""
        if view.runs_before or view.steps:
            return await self._reader.history(session, view.generation)
        return SessionHistory(
            base=await self._reader.last_snapshot(session, view.generation), runs=[]
        )

    async def _rebuild(
        self,
        session: str,
        view: ActiveRunView,
        tools: Sequence[Tool],
        history: SessionHistory,
        past: list[PastRun],
    ) -> None:
        environment = past[0].environment if past else view.offer
        assert environment is not UNSET
        base = None if history.base is None else await self._blobs.get(history.base.blob)
        recorded = [await self._reader.to_recorded(run) for run in past if run.kept]
        created_ms = past[0].now_ms if past else view.started_at_ms
        await self._sandbox.in_thread(
            self._sandbox.rebuild,
            session,
            seed=bytes.fromhex(environment.seed),
            created_ms=created_ms,
            language=environment.language,
            tools=tools,
            limits=environment.limits,
            build=environment.build,
            base=base,
            runs=recorded,
        )
