"""The projector: it reads the journal and feeds every message to its projections.

A query reads on to the end of the journal first, so its reply is as new as the query. The loop runs
other tasks between slices of messages, because a whole realm takes long to read. The projector
starts at a checkpoint, if there is one, and writes new ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from rookery.actors.projections.checkpoint import (
    Checkpoints,
    CheckpointStore,
    JournalPosition,
    PendingCheckpoint,
    Projection,
    StoredCheckpoint,
    position_of,
)
from rookery.actors.projections.pages import PageLost, ProjectionPage
from rookery.bus.ports import Filter, Journal
from rookery.schemas.errors import CodedError, Failed

__all__ = ["Projector"]

log = logging.getLogger(__name__)

SLICE_MESSAGES: Final = 64
"""Folding these takes some 2 ms, which a run on the same loop may have to wait."""
POLL_S: Final = 3.0
CHECKPOINT_LAG_MESSAGES: Final = 10_000
"""How far a checkpoint may be behind; a tenth of a second folds this many."""
PART_LAG_MESSAGES: Final = 500
"""Or so far for each part that the last checkpoint had to write: many sessions have many."""
QUERY_S: Final = 5.0
"""How long a query waits for the lists; a client with a shorter time-out gets no answer."""
FINAL_LAG_MESSAGES: Final = 1_000
"""A node that stops writes a checkpoint if the current one is further behind."""

T = TypeVar("T")


class Projector:
    """One pass through the journal. Runs on the bus's loop."""

    def __init__(
        self,
        journal: Journal,
        tables: Sequence[Projection],
        where: Filter = Filter(),  # noqa: B008 - frozen.
        store: CheckpointStore | None = None,
    ) -> None:
        """Each of ``tables`` gets each message that ``where`` selects once, in order."""
        self._journal, self._filter, self._projections = journal, where, list(tables)
        self._checkpoints = None if store is None else Checkpoints(journal, store)
        self._journal_position = JournalPosition()
        self._end = 0
        """The end of the journal, as of the last refresh."""
        self._checkpointed_sequence = 0
        """The sequence of the newest known checkpoint."""
        self._parts_written = 0
        """How many parts the last checkpoint of this node wrote."""
        self._is_started = False
        self._is_rebuilt = False
        """Whether the current checkpoint lacks a page, so that it has to be replaced."""
        self._lock = asyncio.Lock()
        self._requested = self._completed = 0
        """How many refreshes were requested, and up to which of them they are done."""

    @property
    def _sequence(self) -> int:
        return self._journal_position.sequence

    def projection(self, kind: type[T]) -> T:
        """The projection of this class, as far as it is folded."""
        return next(table for table in self._projections if isinstance(table, kind))

    async def refresh(self) -> None:
        """Fold the messages that were appended since the last refresh. One refresh serves all
        queries that waited for it to begin."""
        self._requested += 1
        number = self._requested
        async with self._lock:
            if self._completed >= number:
                return
            waiting = self._requested
            end = self._end = await self._journal.end()
            if not self._is_started and end:
                await self._load_checkpoint()
            if end > self._sequence:
                await self._read_on()
            self._completed = waiting

    async def refresh_for_query(self) -> None:
        """``refresh``, or ``Failed`` LISTS_BEHIND if there is much to read; what was read counts,
        and ``run`` reads on."""
        try:
            async with asyncio.timeout(QUERY_S):
                await self.refresh()
        except TimeoutError:
            text = f"the lists have {self._sequence:,} of {self._end:,} messages of the journal"
            raise Failed("LISTS_BEHIND", text, hint="ask again: the node reads on") from None

    async def read_page(self, page: ProjectionPage[Any]) -> bytes:
        """The compressed contents of a projection's page; ``PageLost`` if they cannot be had."""
        if page.body is not None:
            return page.body
        assert self._checkpoints is not None, "a page leaves memory with a checkpoint"
        return await self._checkpoints.read_page(page)

    async def rebuild(self, table: Projection) -> None:
        """Fold the whole journal again, since a page of this projection is lost. Of several queries
        that miss it only the first starts over."""
        async with self._lock:
            if any(one is table for one in self._projections):
                self._start_over()
        await self.refresh()

    async def start_over(self) -> None:
        """Fold the whole journal again at the next refresh."""
        async with self._lock:
            self._start_over("a message was quarantined")

    async def run(self) -> None:
        """Refresh regularly, so that queries reply fast, and write checkpoints, until cancelled."""
        while True:
            try:
                await self.refresh()
                await self._checkpoint_if_behind(
                    max(CHECKPOINT_LAG_MESSAGES, self._parts_written * PART_LAG_MESSAGES)
                )
            except CodedError as error:
                log.info("projections not refreshed", extra={"code": error.code})
            await asyncio.sleep(POLL_S)

    async def checkpoint(self) -> None:
        """Write a checkpoint for the next node."""
        try:
            await self.refresh()
            await self._checkpoint_if_behind(FINAL_LAG_MESSAGES)
        except CodedError as error:
            log.info("checkpoint not written", extra={"code": error.code})

    def _start_over(self, reason: str = "the checkpoint lacks a page") -> None:
        log.warning("projections folded again, since %s", reason)
        self._projections = [table.empty() for table in self._projections]
        self._journal_position = JournalPosition()
        self._checkpointed_sequence = 0
        self._is_rebuilt = True

    async def _load_checkpoint(self) -> None:
        found = (
            None if self._checkpoints is None else await self._checkpoints.load(self._projections)
        )
        if found is not None:
            self._journal_position, self._projections = found
            self._checkpointed_sequence = self._sequence
        self._is_started = True

    async def _read_on(self) -> None:
        async for page in self._journal.scan(self._filter, self._sequence):
            for first in range(0, len(page), SLICE_MESSAGES):
                for stored in page[first : first + SLICE_MESSAGES]:
                    for table in self._projections:
                        table.apply(stored)
                    self._journal_position = position_of(stored)
                await asyncio.sleep(0)

    async def _checkpoint_if_behind(self, behind_max: int) -> None:
        """Write a checkpoint if the current one is further behind than ``behind_max``.

        A projector that reads only a part of the journal writes none.
        """
        checkpoints, is_whole = self._checkpoints, self._filter == Filter()
        if (
            checkpoints is None
            or not is_whole
            or self._sequence - self._checkpointed_sequence <= behind_max
        ):
            return
        current = await checkpoints.stored()
        async with self._lock:
            try:
                draft = await self._prepare(checkpoints, current, behind_max)
            except PageLost:
                self._start_over()
                return
        if draft is not None and await checkpoints.write(draft):
            self._checkpointed_sequence = draft.position.sequence
            self._parts_written, self._is_rebuilt = len(draft.changed), False

    async def _prepare(
        self, checkpoints: Checkpoints, current: StoredCheckpoint, behind_max: int
    ) -> PendingCheckpoint | None:
        """A checkpoint to be written; ``None`` if that of another node is new enough."""
        if not self._is_rebuilt:
            self._checkpointed_sequence = current.usable_sequence(self._projections)
            if self._sequence - self._checkpointed_sequence <= behind_max:
                await checkpoints.adopt_pages(self._projections, current)
                return None
        return await checkpoints.prepare(self._projections, self._journal_position, current)
