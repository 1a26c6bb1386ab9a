"""``SnapshotRemover``: deletes the blobs of session snapshots that nothing names any more.

A replaced snapshot is deleted by an effect of the fact that replaces it, the image of a parked run
when the run has gone on. A pass over the marked blobs finds what a node left that died in between:
blobs that no fact came to name, and deletions that did not end. Blobs whose ids clients know are
pinned, and are never deleted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.kernel import Effect, EffectHandler
from rookery.actors.session_snapshots import DeleteSnapshots
from rookery.bus.ports import BlobMark, Blobs, TaskSet
from rookery.schemas.errors import CodedError

__all__ = ["SnapshotRemover"]

log = logging.getLogger(__name__)

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
