"""The feed of a journal in memory: the same contract as JetStream's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from rookery.bus.journal.stored_message import matcher
from rookery.bus.memory.journal import MemoryLog
from rookery.bus.ports import Filter, StoredMessage
from rookery.schemas.errors import Failed

__all__ = ["MemoryFeed"]

_PAGE_MESSAGES = 256


class MemoryFeed:
    """Port ``Feed``."""

    def __init__(self, log: MemoryLog) -> None:
        self._journal = log

    async def follow(
        self, where: Filter, after: int = 0
    ) -> AsyncGenerator[list[StoredMessage], None]:
        matches = matcher(where)
        if after > (end := await self._journal.end()):
            raise Failed("FEED_GAP", f"the journal ends at {end}, before the cursor {after}")
        grown = asyncio.Event()
        self._journal.on_grown.append(grown.set)
        try:
            while True:
                grown.clear()
                page = self._journal.page(after, after + _PAGE_MESSAGES)
                if not page:
                    await grown.wait()
                    continue
                after = page[-1].sequence
                if selected := [one for one in page if matches(one)]:
                    yield selected
        finally:
            self._journal.on_grown.remove(grown.set)
