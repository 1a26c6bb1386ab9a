"""``SessionCache``: the sessions in a node's sandbox, and how they are brought up to date.

The sandbox's copy of a session is used only while it is known to match the journal; otherwise the
session is rebuilt from its last snapshot and the runs after that. Occasional snapshots bound what a
rebuild replays; what counts is what the programs executed, so waiting is free. A parked run leaves
no snapshot if the session with the run is repeated as fast. Idle sessions have a memory limit; the
longest idle are evicted first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import takewhile
from typing import NamedTuple, Protocol

from msgspec import UNSET

from rookery.actors.execution.history import PastRun, RunHistoryReader, SessionHistory
from rookery.actors.execution.snapshot_keeper import SnapshotKeeper, SnapshotRemover
from rookery.actors.messages import ActiveRunView
from rookery.actors.sandbox import Sandbox, Tool
from rookery.actors.sandbox.sessions import ResultBatch
from rookery.bus.ports import Blobs
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.errors import Failed, Refused
from rookery.schemas.run import RunResult

__all__ = ["IDLE_BYTES_MAX", "ProgramCachePort", "SessionCache", "SessionCachePort"]

PARK_INSTRUCTIONS_MAX = 200_000_000
"""Repeating these, about 20 ms, costs less than storing and restoring an image."""
SNAPSHOT_AFTER_INSTRUCTIONS = 2_000_000_000
"""About 200 ms."""
SNAPSHOT_AFTER_INSTRUCTIONS_PER_MIB = 250_000_000
"""The cost of storing a large snapshot; fewer instructions are replayed faster."""
SNAPSHOT_AFTER_RUNS = 500
"""Reading and repeating a trivial run takes a third of a millisecond."""
SHORT_RUNS_MAX = 4
"""To begin a session with the logs of so few runs takes less time than to wait for a thread."""
IDLE_BYTES_MAX = 256 << 20
"""About a hundred busy sessions or 40,000 small ones."""


class SessionCachePort(Protocol):
    """The sessions that a node holds in memory between runs."""

    async def prepare(
        self, session: str, view: ActiveRunView, tools: Sequence[Tool]
    ) -> Sequence[ResultBatch]:
        """Bring the session to the run's beginning; the run's earlier results."""

    async def require(self, environment: RunEnvironment) -> None:
        """Raise ``Refused`` if no guest here can continue such a run."""

    async def restore_parked(
        self, session: str, view: ActiveRunView, tools: Sequence[Tool]
    ) -> None:
        """Bring the session to the point where the run was parked."""

    async def park(
        self, session: str, view: ActiveRunView, *, is_repeatable: bool
    ) -> tuple[str, str]:
        """Evict the session with its waiting run; the id and blob of its snapshot, both empty if
        the run is to be repeated, which ``is_repeatable`` permits."""

    def on_unparked(self, image: str) -> None:
        """Note that no run is resumed from this blob any more."""

    async def store_snapshot(self, session: str, environment: RunEnvironment) -> str:
        """Store the session for its client; the snapshot's id."""

    async def on_run_ended(
        self, session: str, view: ActiveRunView, result: RunResult, *, kept: bool
    ) -> None:
        """Note that the run's end is recorded."""

    async def evict(self, session: str) -> None:
        """Drop the session from memory, because it may be outdated."""


class ProgramCachePort(SessionCachePort, Protocol):
    """The sessions of a sandbox, in which programs of models are executed, too."""

    def count_run(
        self, session: str, view: ActiveRunView, result: RunResult, *, kept: bool
    ) -> None:
        """Note the end of a program, if it is recorded before anything else is."""

    def store_if_due(self, session: str, view: ActiveRunView) -> None:
        """Note that the run of a model that acts in programs has ended."""


class _CachedPosition(NamedTuple):
    """What the sandbox's copy of a session contains."""

    generation: int
    runs: int
    since_instructions: int = 0
    """What the runs since the last snapshot executed."""
    since_runs: int = 0
    snapshot_bytes: int = 0
    """Size of the last snapshot."""

    @property
    def is_snapshot_due(self) -> bool:
        by_size = SNAPSHOT_AFTER_INSTRUCTIONS_PER_MIB * self.snapshot_bytes >> 20
        enough = max(SNAPSHOT_AFTER_INSTRUCTIONS, by_size)
        return self.since_instructions >= enough or self.since_runs >= SNAPSHOT_AFTER_RUNS


_UNKNOWN = _CachedPosition(-1, -1)
"""The sandbox may have the session, in an unknown state."""


class SessionCache:
    """One per process; lives on the bus's loop."""

    def __init__(
        self,
        sandbox: Sandbox,
        reader: RunHistoryReader,
        images: Blobs,
        keeper: SnapshotKeeper,
        remover: SnapshotRemover,
        *,
        resting_bytes_max: int = IDLE_BYTES_MAX,
    ) -> None:
        self._sandbox, self._reader, self._images = sandbox, reader, images
        self._keeper, self._remover = keeper, remover
        self._idle_bytes_max = resting_bytes_max
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
        try:
            history = await self._rebuild_from_history(session, view, tools)
        except Failed as failure:
            if failure.code != "BLOB_NOT_FOUND":
                raise
            # A newer snapshot may have replaced the one that the history named.
            history = await self._rebuild_from_history(session, view, tools)
        earlier = takewhile(lambda run: run.run_id != view.run_id, history.runs)
        kept = [run for run in earlier if run.kept]
        self._positions[session] = _CachedPosition(
            view.generation,
            view.runs_before,
            sum(run.instructions for run in kept),
            len(kept),
            0 if history.base is None else history.base.size_bytes,
        )
        running = [run for run in history.runs if run.run_id == view.run_id]
        return running[-1].batches if running else await self._reader.forked_answers(view.forked)

    async def require(self, environment: RunEnvironment) -> None:
        """Raise ``Refused`` if the guest build of the run's session is unavailable."""
        language, build = environment.language, environment.build
        if build != self._sandbox.builds.get(language):
            await self._sandbox.in_thread(self._sandbox.require, language, build)

    async def restore_parked(
        self, session: str, view: ActiveRunView, tools: Sequence[Tool]
    ) -> None:
        """Restore the session from the parked run's snapshot."""
        self._positions[session] = _UNKNOWN
        data = await self._images.get(view.snapshot_blob)
        await self._sandbox.in_thread(self._sandbox.restore, data, tools=tools, session_id=session)
        self._positions[session] = _CachedPosition(view.generation, view.runs_before)

    async def park(
        self, session: str, view: ActiveRunView, *, is_repeatable: bool
    ) -> tuple[str, str]:
        """Evict the session with its waiting run; the id and blob of its snapshot. Both are empty
        if the session is to be repeated from its history, which ``is_repeatable`` permits."""
        if is_repeatable and self._is_replayed_soon(session):
            await self.evict(session)
            return "", ""
        assert view.offer is not UNSET
        stored = await self._keeper.store(session, view.offer)
        await self.evict(session)
        return stored.id, stored.blob

    def on_unparked(self, image: str) -> None:
        """Delete the image that a parked run was resumed from; its next step is recorded."""
        self._remover.delete_soon(image)

    async def store_snapshot(self, session: str, environment: RunEnvironment) -> str:
        """Store the session for its client, for ever; the snapshot's id."""
        stored = await self._keeper.store(session, environment)
        if not await self._images.pin(stored.blob):
            raise Failed("CONFLICT", f"the snapshot {stored.id} is being deleted")
        return stored.id

    async def on_run_ended(
        self, session: str, view: ActiveRunView, result: RunResult, *, kept: bool
    ) -> None:
        """Note a recorded end, and begin to store a snapshot if a rebuild would take long by
        now."""
        self.count_run(session, view, result, kept=kept)
        self.store_if_due(session, view)

    def count_run(
        self, session: str, view: ActiveRunView, result: RunResult, *, kept: bool
    ) -> None:
        """Note the end of what was executed, if it is recorded before anything else is."""
        position = self._positions.pop(session, None)
        if position is None:
            return
        position = position._replace(runs=view.runs_before + 1)
        if kept:
            position = position._replace(
                since_instructions=position.since_instructions + result.metrics.instructions,
                since_runs=position.since_runs + 1,
            )
        self._positions[session] = position

    def store_if_due(self, session: str, view: ActiveRunView) -> None:
        """Begin to store a snapshot if a rebuild would take long by now; the end of the run is the
        session's last."""
        position = self._positions.get(session)
        if position is None:
            return
        if position.is_snapshot_due and view.offer is not UNSET:
            storing = self._keeper.store_beside(session, view, view.offer)
            if storing is not None:
                storing.add_done_callback(partial(self._on_stored, session, position))

    def _on_stored(
        self, session: str, stored: _CachedPosition, storing: asyncio.Task[int | None]
    ) -> None:
        """Count from the snapshot of the session as it was at ``stored``. After a failure the next
        run tries again; a session that is too large waits for more runs."""
        position = self._positions.get(session)
        size_bytes = None if storing.cancelled() else storing.result()
        if size_bytes is None or position is None or position.generation != stored.generation:
            return
        since = position.since_instructions - stored.since_instructions
        self._positions[session] = position._replace(
            since_instructions=max(0, since),
            since_runs=max(0, position.since_runs - stored.since_runs),
            snapshot_bytes=size_bytes,
        )

    def _is_replayed_soon(self, session: str) -> bool:
        """Whether repeating the session with its waiting run executes few instructions."""
        position = self._positions.get(session, _UNKNOWN)
        executed = position.since_instructions + self._sandbox.run_instructions(session)
        return position.generation > 0 and executed <= PARK_INSTRUCTIONS_MAX

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

    async def _rebuild_from_history(
        self, session: str, view: ActiveRunView, tools: Sequence[Tool]
    ) -> SessionHistory:
        history = await self._history(session, view)
        past = [*takewhile(lambda run: run.run_id != view.run_id, history.runs)]
        await self._rebuild(session, view, tools, history, past)
        return history

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
        base = None if history.base is None else await self._images.get(history.base.blob)
        recorded = [await self._reader.to_recorded(run) for run in past if run.kept]
        rebuild = partial(
            self._sandbox.rebuild,
            session,
            seed=bytes.fromhex(environment.seed),
            created_ms=past[0].now_ms if past else view.started_at_ms,
            language=environment.language,
            tools=tools,
            limits=environment.limits,
            build=environment.build,
            base=base,
            runs=recorded,
        )
        is_short = base is None and len(recorded) <= SHORT_RUNS_MAX
        if is_short and self._sandbox.begins_at_once(
            session, environment.language, environment.build
        ):
            rebuild()
        else:
            await self._sandbox.in_thread(rebuild)
