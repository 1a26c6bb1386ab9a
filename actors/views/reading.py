"""A journal read on from where it was, whenever somebody asks: what every view stands on.

An answer is as new as the question. Between a few hundred messages the loop is given to others, for
a view that has a whole realm to read must not hold up those who work.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from rookery.bus.ports import Filter, Journal, Stored
from rookery.schemas.errors import Failed

__all__ = ["Reading"]

log = logging.getLogger(__name__)

SLICE_MESSAGES: Final = 256
KEEP_UP_S: Final = 3.0


class Reading:
    """One view's way through the journal. Lives on the bus's loop."""

    def __init__(self, journal: Journal, where: Filter, take: Callable[[Stored], None]) -> None:
        """``take`` gets each message once, in order."""
        self._journal, self._where, self._take = journal, where, take
        self._position = 0
        self._lock = asyncio.Lock()

    async def refresh(self) -> None:
        """Read what has been added since the last time."""
        async with self._lock:
            if await self._journal.end() <= self._position:
                return
            async for page in self._journal.scan(self._where, self._position):
                for first in range(0, len(page), SLICE_MESSAGES):
                    for stored in page[first : first + SLICE_MESSAGES]:
                        self._take(stored)
                        self._position = stored.sequence
                    await asyncio.sleep(0)

    async def keep_up(self) -> None:
        """Read along, so that nobody who asks has to wait for long. Goes on until cancelled."""
        while True:
            try:
                await self.refresh()
            except Failed as error:
                log.info("a view is behind", extra={"code": error.code})
            await asyncio.sleep(KEEP_UP_S)
