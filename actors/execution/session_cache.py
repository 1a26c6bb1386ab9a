"""What a node's sandbox remembers of sessions, and how it is brought to where a session stands.

The sandbox's own memory of a session is a shortcut that is trusted only while it is known to stand
where the journal does; else the session is rebuilt from where it was last kept and the runs after
that. Keeping it anew, now and then, bounds what a rebuild has to run again; so what sessions hold
that rest is bounded, too, and those that rest for longest are forgotten first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import UNSET

from rookery.actors.execution.history import PastRun, RunHistoryReader, SessionHistory
from rookery.actors.kernel import NO_METRICS, KernelMetrics
from rookery.actors.kernel.local_ask import AskActor
from rookery.actors.messages import ActiveRunView
from rookery.actors.sandbox.contract import Tool
from rookery.actors.sandbox.sandbox import Sandbox
from rookery.actors.sandbox.sessions.recorded_runs import ResultBatch
from rookery.actors.session_snapshots.decider import RecordSnapshot, SnapshotState
from rookery.bus.ports import Blobs
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.run import SNAPSHOT_BYTES_MAX, RunResult

__all__ = ["SessionCache"]

log = logging.getLogger(__name__)

TOO_LARGE = "PAYLOAD_TOO_LARGE"
SNAPSHOT_AFTER_MS = 200
SNAPSHOT_AFTER_MS_PER_MIB = 25
"""What keeping a large one takes: less of its programs than that is sooner run again."""
SNAPSHOT_AFTER_RUNS = 100
IDLE_BYTES_MAX = 256 << 20
"""Some hundred sessions that did much, or forty thousand that did little."""


class _CachedPosition(NamedTuple):
    """Where the sandbox's session stands."""

    generation: int
    runs: int
    since_ms: int = 0
    """Time that the programs of the runs since it was last kept have used."""
    since_runs: int = 0
    snapshot_bytes: int = 0
    """How large it was when it was last kept."""

    @property
    def is_snapshot_due(self) -> bool:
        enough_ms = max(SNAPSHOT_AFTER_MS, SNAPSHOT_AFTER_MS_PER_MIB * self.snapshot_bytes >> 20)
        return self.since_ms >= enough_ms or self.since_runs >= SNAPSHOT_AFTER_RUNS


_UNKNOWN = _CachedPosition(-1, -1)
"""It may be there, and is not to be trusted."""


class SessionCache:
    """One a node; lives on the bus's loop."""

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
        """Of all sessions that were given to the sandbox and not forgotten since."""

    async def prepare(
        self, session: str, view: ActiveRunView, tools: Sequence[Tool]
    ) -> Sequence[ResultBatch]:
        """The sandbox's session stands where the run begins; what the run was told before."""
        stand = self._positions.get(session)
        if stand and stand[:2] == (view.generation, view.runs_before) and not view.steps:
            return await self._reader.forked_answers(view.forked)
        self._positions[session] = _UNKNOWN
        history = await self._history(session, view)
        past = [run for run in history.runs if run.run_id != view.run_id]
        await self._rebuild(session, view, tools, history, past)
        kept_bytes = 0 if history.base is None else history.base.size_bytes
        stand = _CachedPosition(view.generation, view.runs_before, 0, len(past), kept_bytes)
        self._positions[session] = stand
        running = [run for run in history.runs if run.run_id == view.run_id]
        return running[-1].batches if running else await self._reader.forked_answers(view.forked)

    async def require(self, offer: RunEnvironment) -> None:
        """``Refused`` if the guest that the run's session began with is nowhere to be had."""
        await self._sandbox.in_thread(self._sandbox.require, offer.language, offer.build)

    async def restore_parked(
        self, session: str, view: ActiveRunView, tools: Sequence[Tool]
    ) -> None:
        """The sandbox's session stands where the run was parked."""
        self._positions[session] = _UNKNOWN
        data = await self._blobs.get(view.snapshot_blob)
        await self._sandbox.in_thread(self._sandbox.restore, data, tools=tools, session_id=session)
        self._positions[session] = _CachedPosition(view.generation, view.runs_before)

    async def park(self, session: str, offer: RunEnvironment) -> tuple[str, str]:
        """Keep the session with its waiting run, and let it go; the snapshot's id and blob."""
        snapshot_id, blob, _ = await self.store_snapshot(session, offer)
        await self.evict(session)
        return snapshot_id, blob

    async def store_snapshot(self, session: str, offer: RunEnvironment) -> tuple[str, str, int]:
        """Put the session as it stands into the blob store; the snapshot's id, blob and size."""
        sandbox = self._sandbox
        snapshot = await sandbox.in_thread(sandbox.snapshot, session, limits=offer.session_limits)
        try:
            blob = await self._blobs.put(snapshot.data, self._snapshot_bytes_max)
        except Refused as refusal:
            raise Refused(
                refusal.code,
                f"session {session} cannot be kept: {refusal.message}",
                hint="delete what its programs hold in their variables and need no more",
            ) from None
        self._metrics.snapshot_stored(len(snapshot.data))
        return snapshot.id, blob, len(snapshot.data)

    async def on_run_ended(
        self, session: str, view: ActiveRunView, result: RunResult, *, kept: bool
    ) -> None:
        """The run is over and stands; keep the session if a rebuild would take long by now."""
        stand = self._positions.pop(session, None)
        if stand is None:
            return
        stand = stand._replace(runs=view.runs_before + 1)
        if kept:
            tools_ms = sum(call.duration_ms for call in result.external_calls)
            used_ms = max(0, result.metrics.duration_ms - tools_ms)
            stand = stand._replace(
                since_ms=stand.since_ms + used_ms, since_runs=stand.since_runs + 1
            )
        self._positions[session] = stand
        if stand.is_snapshot_due:
            self._positions[session] = await self._try_record_snapshot(session, view, stand)

    async def _try_record_snapshot(
        self, session: str, view: ActiveRunView, stand: _CachedPosition
    ) -> _CachedPosition:
        """If that fails, the session and the log of its runs are still here. It is tried again
        after the next run, or after many if it was too large."""
        try:
            kept_bytes = await self._record_snapshot(session, view)
        except CodedError as error:
            said = {"session": session, "code": error.code}
            log.warning("a session could not be kept", extra=said)
            if error.code != TOO_LARGE:
                return stand
            kept_bytes = self._snapshot_bytes_max
        return stand._replace(since_ms=0, since_runs=0, snapshot_bytes=kept_bytes)

    async def _record_snapshot(self, session: str, view: ActiveRunView) -> int:
        """Keep the session as the run has left it, and say so in a fact; its size."""
        base = await self._reader.last_snapshot(session, view.generation)
        runs = await self._reader.runs(session, view.generation, base)
        ended = [run for run in runs if run.run_id == view.run_id and run.ended_at_sequence]
        if not ended:
            raise Failed("FACT_UNKNOWN", f"run {view.run_id} has no end in the journal")
        offer = ended[0].environment
        snapshot_id, blob, size = await self.store_snapshot(session, offer)
        keep = RecordSnapshot(
            generation=view.generation,
            snapshot_id=snapshot_id,
            blob=blob,
            language=offer.language,
            build=self._sandbox.build_of(session),
            after_sequence=ended[0].ended_at_sequence,
            size_bytes=size,
            limits=offer.session_limits,
        )
        await self._ask("sandbox", session, keep, SnapshotState)
        return size

    async def evict(self, session: str) -> None:
        """Whatever the sandbox remembers of the session is not to be trusted any more."""
        if self._positions.pop(session, None) is not None:
            try:
                await self._sandbox.in_thread(self._sandbox.destroy, session)
            except Refused:  # It has gone by itself.
                return

    def eviction_candidates(self, busy: Callable[[str], bool]) -> Sequence[str]:
        """Sessions to forget, so that those that rest do not hold too much."""
        ours = self._positions

        def spared(session: str) -> bool:
            return session not in ours or busy(session)

        return self._sandbox.eviction_candidates(self._idle_bytes_max, spared)

    async def _history(self, session: str, view: ActiveRunView) -> SessionHistory:
        """Of a life that has just begun, only where it comes from is to be asked."""
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
        offer = past[0].environment if past else view.offer
        assert offer is not UNSET
        base = None if history.base is None else await self._blobs.get(history.base.blob)
        recorded = [await self._reader.to_recorded(run) for run in past if run.kept]
        created_ms = past[0].now_ms if past else view.started_at_ms
        await self._sandbox.in_thread(
            self._sandbox.rebuild,
            session,
            seed=bytes.fromhex(offer.seed),
            created_ms=created_ms,
            language=offer.language,
            tools=tools,
            limits=offer.limits,
            build=offer.build,
            base=base,
            runs=recorded,
        )
