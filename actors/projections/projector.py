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

from rookery.actors.projections.checkpoint import Checkpoints, Place, Shelf, Table, place_of
from rookery.bus.ports import Filter, Journal
from rookery.schemas.errors import CodedError

__all__ = ["Reading"]

log = logging.getLogger(__name__)

SLICE_MESSAGES: Final = 256
KEEP_UP_S: Final = 3.0
BEHIND_MESSAGES: Final = 10_000
"""How far a checkpoint may be behind: so many are folded in a tenth of a second."""
BEHIND_SHARE: Final = 25
"""Or this part of the journal, for a checkpoint of a long one takes longer to write."""
LAST_MESSAGES: Final = 1_000
"""A node that stops leaves a checkpoint if the standing one is further behind."""

T = TypeVar("T")


class Reading:
    """One way through the journal. Lives on the bus's loop."""

    def __init__(
        self,
        journal: Journal,
        tables: Sequence[Table],
        where: Filter = Filter(),  # noqa: B008 - frozen.
        shelf: Shelf | None = None,
    ) -> None:
        """Each of ``tables`` gets each message that ``where`` selects once, in order."""
        self._journal, self._where, self._tables = journal, where, list(tables)
        self._checkpoints = None if shelf is None else Checkpoints(journal, shelf)
        self._place = Place()
        self._kept = 0
        """The sequence of the last checkpoint we know of."""
        self._begun = False
        self._lock = asyncio.Lock()

    @property
    def _position(self) -> int:
        return self._place.sequence

    def table(self, kind: type[T]) -> T:
        """As far as it is folded."""
        return next(table for table in self._tables if isinstance(table, kind))

    async def refresh(self) -> None:
        """Read what has been added since the last time."""
        async with self._lock:
            end = await self._journal.end()
            if not self._begun and end:
                await self._begin()
            if end > self._position:
                await self._read_on()

    async def keep_up(self) -> None:
        """Read along, so that nobody who asks has to wait for long, and leave a checkpoint now and
        then. Goes on until cancelled."""
        while True:
            try:
                await self.refresh()
                await self._keep(max(BEHIND_MESSAGES, self._position // BEHIND_SHARE))
            except CodedError as error:
                log.info("a view is behind", extra={"code": error.code})
            await asyncio.sleep(KEEP_UP_S)

    async def leave(self) -> None:
        """Leave a checkpoint for whoever comes next."""
        try:
            await self.refresh()
            await self._keep(LAST_MESSAGES)
        except CodedError as error:
            log.info("no checkpoint was left", extra={"code": error.code})

    async def _begin(self) -> None:
        found = None if self._checkpoints is None else await self._checkpoints.load(self._tables)
        if found is not None:
            self._place, self._tables = found
            self._kept = self._position
        self._begun = True

    async def _read_on(self) -> None:
        async for page in self._journal.scan(self._where, self._position):
            for first in range(0, len(page), SLICE_MESSAGES):
                for stored in page[first : first + SLICE_MESSAGES]:
                    for table in self._tables:
                        table.take(stored)
                    self._place = place_of(stored)
                await asyncio.sleep(0)

    async def _keep(self, behind_max: int) -> None:
        """Leave a checkpoint, unless one stands that is not further behind than that. Who has
        read only a part of the journal has nothing to leave."""
        checkpoints, is_whole = self._checkpoints, self._where == Filter()
        if checkpoints is None or not is_whole or self._position - self._kept <= behind_max:
            return
        standing = await checkpoints.standing()
        async with self._lock:
            self._kept = standing.sequence(self._tables)
            if self._position - self._kept <= behind_max:
                return
            draft = await checkpoints.draft(self._tables, self._place, standing)
        if await checkpoints.write(draft):
            self._kept = draft.place.sequence
