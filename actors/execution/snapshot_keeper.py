"""Snapshots of sessions: ``SnapshotKeeper`` stores them, ``SnapshotRemover`` deletes the old."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.kernel import Effect
from rookery.actors.kernel.executors import AskActor, EffectHandler
from rookery.actors.messages import ActiveRunView
from rookery.actors.metrics import NO_METRICS, KernelMetrics
from rookery.actors.sandbox import Sandbox
from rookery.actors.sandbox.sessions import SessionCopy, Snapshot
from rookery.actors.session_snapshots import DeleteSnapshots, RecordSnapshot, SnapshotState
from rookery.bus.ports import BlobMark, Blobs, TaskSet
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.errors import CodedError, Failed, Refused
from rookery.schemas.run import SNAPSHOT_BYTES_MAX

__all__ = [
    "SnapshotKeeper",
    "SnapshotRemover",
    "StoredSnapshot",
]

# --- snapshot keeper ------------------------------------------------------------------------------

# ``SnapshotKeeper``: stores sessions as snapshots, beside their next runs.
#
# When a run has ended, the session's memory is copied before its next run. Compressing, storing and
# recording the copy happen meanwhile. The blob is marked until a fact names it, so that
# ``SnapshotRemover`` finds it if this node dies in between.


log = logging.getLogger(__name__)

TOO_LARGE: Final = "PAYLOAD_TOO_LARGE"
COPIES_MAX: Final = 2
"""Each is as large as the memory of its session."""


class StoredSnapshot(NamedTuple):
    """A snapshot in the blob store."""

    id: str
    blob: str
    size_bytes: int


class SnapshotKeeper:
    """One per node; lives on the bus's loop."""

    def __init__(
        self,
        sandbox: Sandbox,
        reader: RunHistoryReader,
        images: Blobs,
        ask: AskActor,
        now_ms: Callable[[], int],
        *,
        snapshot_bytes_max: int = SNAPSHOT_BYTES_MAX,
        metrics: KernelMetrics = NO_METRICS,
    ) -> None:
        self._sandbox, self._reader, self._images, self._ask = sandbox, reader, images, ask
        self._now_ms, self._bytes_max, self._metrics = now_ms, snapshot_bytes_max, metrics
        self._tasks = TaskSet()
        self._keeping: set[str] = set()

    def store_beside(
        self, session: str, view: ActiveRunView, environment: RunEnvironment
    ) -> asyncio.Task[int | None] | None:
        """Start to store the session as its last run left it; the task returns the snapshot's size,
        ``None`` after a failure, which loses nothing. ``None`` if too much is being stored."""
        if session in self._keeping or len(self._keeping) >= COPIES_MAX:
            return None
        try:
            copying = self._sandbox.copy(session, limits=environment.session_limits)
        except Refused:  # The sandbox has dropped it already.
            return None
        self._keeping.add(session)
        copied = asyncio.wrap_future(copying)
        task = self._tasks.start(self._try_store(session, view, environment, copied))
        task.add_done_callback(lambda _: self._keeping.discard(session))
        return task

    async def store(self, session: str, environment: RunEnvironment) -> StoredSnapshot:
        """Store the session, with its waiting run if it has one; the blob is marked."""
        sandbox = self._sandbox
        taken = await sandbox.in_thread(
            sandbox.snapshot, session, limits=environment.session_limits
        )
        return await self._put(session, taken)

    async def close(self) -> None:
        """Cancel what is being stored."""
        await self._tasks.cancel()

    async def _try_store(
        self,
        session: str,
        view: ActiveRunView,
        environment: RunEnvironment,
        copied: Awaitable[SessionCopy],
    ) -> int | None:
        try:
            # At once, while the run's end is the last message.
            end = self._reader.end_of(session, view.generation, view.run_id)
            after_sequence, copy = await asyncio.gather(end, copied)
            stored = await self._store(session, view, environment, copy, after_sequence)
        except CodedError as error:
            log.warning(
                "session snapshot not stored", extra={"session": session, "code": error.code}
            )
            return self._bytes_max if error.code == TOO_LARGE else None
        return stored.size_bytes

    async def _store(
        self,
        session: str,
        view: ActiveRunView,
        environment: RunEnvironment,
        copy: SessionCopy,
        after_sequence: int,
    ) -> StoredSnapshot:
        """``after_sequence``: of the end of the last run in the copy."""
        sandbox = self._sandbox
        taken = await sandbox.in_thread(sandbox.seal, copy)
        stored = await self._put(session, taken)
        command = RecordSnapshot(
            generation=view.generation,
            snapshot_id=stored.id,
            blob=stored.blob,
            language=environment.language,
            build=copy.header.build,
            after_sequence=after_sequence,
            size_bytes=stored.size_bytes,
            limits=environment.session_limits,
            automatic=True,
        )
        state = await self._ask("sandbox", session, command, SnapshotState)
        if state.blob != stored.blob:
            raise Failed("CONFLICT", f"session {session} has a newer snapshot")
        await self._images.unmark(stored.blob)
        return stored

    async def _put(self, session: str, taken: Snapshot) -> StoredSnapshot:
        try:
            blob = await self._images.put_marked(
                taken.data, session, self._now_ms(), self._bytes_max
            )
        except Refused as refusal:
            raise Refused(
                refusal.code,
                f"session {session} cannot be stored: {refusal.message}",
                hint="delete variables that its programs need no longer",
            ) from None
        self._metrics.snapshot_stored(len(taken.data))
        return StoredSnapshot(taken.id, blob, len(taken.data))


# --- snapshot remover -----------------------------------------------------------------------------

# ``SnapshotRemover``: deletes the blobs of session snapshots that nothing names any more.
#
# A replaced snapshot is deleted by an effect of the fact that replaces it, the image of a parked
# run when the run has gone on. A pass over the marked blobs finds what a node left that died in
# between: blobs that no fact came to name, and deletions that did not end. Blobs whose ids clients
# know are pinned, and are never deleted.


PASS_S: Final = 600.0
YOUNG_MS: Final = 600_000
"""Younger blobs may be about to be named by a fact."""


class SnapshotRemover:
    """One per node; lives on the bus's loop."""

    def __init__(
        self,
        reader: RunHistoryReader,
        images: Blobs,
        acts_for: Callable[[str], bool],
        now_ms: Callable[[], int],
    ) -> None:
        """``acts_for``: whether this node owns a session."""
        self._reader, self._images = reader, images
        self._acts_for, self._now_ms = acts_for, now_ms
        self._tasks = TaskSet()

    @property
    def handlers(self) -> Mapping[type[Effect], EffectHandler]:
        return {DeleteSnapshots: self.delete}

    async def delete(self, effect: DeleteSnapshots) -> None:
        """Delete blobs that may be deleted already."""
        for blob in effect.blobs:
            if await self._images.exists(blob):
                await self._images.delete(blob)

    def delete_soon(self, blob: str) -> None:
        """Delete a blob that has a mark; after a failure, a pass does it."""
        self._tasks.start(self._try_delete(blob))

    async def run(self) -> None:
        """Make passes, until cancelled."""
        while True:
            await asyncio.sleep(PASS_S)
            await self.make_pass()

    async def make_pass(self) -> None:
        """Delete the marked blobs of this node's sessions that nothing names."""
        for mark in await self._images.marks():
            is_young = mark.at_ms + YOUNG_MS > self._now_ms()
            if self._acts_for(mark.owner) and not is_young:
                await self._try_delete_unnamed(mark)

    async def close(self) -> None:
        """Cancel deletions; a later pass ends them."""
        await self._tasks.cancel()

    async def _try_delete_unnamed(self, mark: BlobMark) -> None:
        try:
            if not await self._is_named(mark):
                await self._images.delete(mark.digest)
        except CodedError as error:  # Another version may be able to read the history.
            log.info("blob not examined", extra={"session": mark.owner, "code": error.code})

    async def _try_delete(self, blob: str) -> None:
        try:
            await self._images.delete(blob)
        except CodedError as error:
            log.info("blob not deleted", extra={"blob": blob, "code": error.code})

    async def _is_named(self, mark: BlobMark) -> bool:
        remaining = await self._reader.snapshots(mark.owner)
        if any(snapshot.blob == mark.digest for snapshot in remaining):
            await self._images.unmark(mark.digest)
            return True
        return await self._reader.parked_image(mark.owner) == mark.digest
