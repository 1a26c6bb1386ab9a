"""A journal read on from where it was, whenever somebody asks: what every view stands on.

One pass feeds all tables of a reading. An answer is as new as the question. Between a few hundred
messages the loop is given to others, for who has a whole realm to read must not hold up those who
work. It begins at a checkpoint, where there is one, and leaves one behind for the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, TypeVar

from rookery.actors.projections.checkpoint import (
    Checkpoints,
    CheckpointStore,
    JournalPosition,
    Projection,
    position_of,
)
from rookery.bus.ports import Filter, Journal
from rookery.schemas.errors import CodedError

__all__ = ["Projector"]

log = logging.getLogger(__name__)

SLICE_MESSAGES: Final = 256
POLL_S: Final = 3.0
CHECKPOINT_LAG_MESSAGES: Final = 10_000
"""How far a checkpoint may be behind: so many are folded in a tenth of a second."""
CHECKPOINT_LAG_SHARE: Final = 25
"""Or this part of the journal, for a checkpoint of a long one takes longer to write."""
FINAL_LAG_MESSAGES: Final = 1_000
"""A node that stops leaves a checkpoint if the standing one is further behind."""

T = TypeVar("T")


class Projector:
    """One way through the journal. Lives on the bus's loop."""

    def __init__(
        self,
        journal: Journal,
        tables: Sequence[Projection],
        where: Filter = Filter(),  # noqa: B008 - frozen.
        shelf: CheckpointStore | None = None,
    ) -> None:
        """Each of ``tables`` gets each message that ``where`` selects once, in order."""
        self._journal, self._filter, self._projections = journal, where, list(tables)
        self._checkpoints = None if shelf is None else Checkpoints(journal, shelf)
        self._journal_position = JournalPosition()
        self._checkpointed_sequence = 0
        """The sequence of the last checkpoint we know of."""
        self._is_started = False
        self._lock = asyncio.Lock()

    @property
    def _sequence(self) -> int:
        return self._journal_position.sequence

    def projection(self, kind: type[T]) -> T:
        """As far as it is folded."""
        return next(table for table in self._projections if isinstance(table, kind))

    async def refresh(self) -> None:
        """Read what has been added since the last time."""
        async with self._lock:
            end = await self._journal.end()
            if not self._is_started and end:
                await self._load_checkpoint()
            if end > self._sequence:
                await self._read_on()

    async def run(self) -> None:
        """Read along, so that nobody who asks has to wait for long, and leave a checkpoint now and
        then. Goes on until cancelled."""
        while True:
            try:
                await self.refresh()
                await self._checkpoint_if_behind(
                    max(CHECKPOINT_LAG_MESSAGES, self._sequence // CHECKPOINT_LAG_SHARE)
                )
            except CodedError as error:
                log.info("a view is behind", extra={"code": error.code})
            await asyncio.sleep(POLL_S)

    async def checkpoint(self) -> None:
        """Leave a checkpoint for whoever comes next."""
        try:
            await self.refresh()
            await self._checkpoint_if_behind(FINAL_LAG_MESSAGES)
        except CodedError as error:
            log.info("no checkpoint was left", extra={"code": error.code})

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
        """Leave a checkpoint, unless one stands that is not further behind than that. Who has
        read only a part of the journal has nothing to leave."""
        checkpoints, is_whole = self._checkpoints, self._filter == Filter()
        if (
            checkpoints is None
            or not is_whole
            or self._sequence - self._checkpointed_sequence <= behind_max
        ):
            return
        standing = await checkpoints.stored()
        async with self._lock:
            self._checkpointed_sequence = standing.usable_sequence(self._projections)
            if self._sequence - self._checkpointed_sequence <= behind_max:
                return
            draft = await checkpoints.prepare(self._projections, self._journal_position, standing)
        if await checkpoints.write(draft):
            self._checkpointed_sequence = draft.position.sequence
