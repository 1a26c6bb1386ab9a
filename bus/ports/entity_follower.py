"""``EntityFollower``: a view that every node folds from the facts of one entity, and that is valid
only while all of them are known.

After an error that may have cost it a fact, the view is unavailable until it has read all of them
again. It is updated on the bus's loop and read from any thread.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Final

from rookery.bus.ports.journal import Filter, StoredMessage
from rookery.schemas.digest import ChainCursor
from rookery.schemas.envelope import EntityId
from rookery.schemas.errors import CODES, CodedError, Failed

if TYPE_CHECKING:
    from rookery.bus.ports import Bus

__all__ = ["EntityFollower"]

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0
NOT_READ_YET: Final = "not read yet"


class EntityFollower(ABC):
    """Reads the entity's facts, and follows every new one."""

    name: ClassVar[str]
    """In logs."""
    when_unavailable: ClassVar[str]
    """What the node does meanwhile, in logs."""

    def __init__(self, bus: Bus, entity: EntityId) -> None:
        self._bus, self._entity = bus, entity
        self._position, self._cursor = 0, ChainCursor()
        self.unavailable_reason = NOT_READ_YET
        """Why the view is not valid; empty while all facts are known."""
        self._changed = asyncio.Event()

    async def wait_until(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a change of the view after which ``holds`` is true; whether it came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                while not holds():
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def notify(self) -> None:
        """The view has changed: wake those who wait for that."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    @abstractmethod
    def reset(self) -> None:
        """Forget all facts."""

    @abstractmethod
    def apply(self, stored: StoredMessage) -> None:
        """Apply the next message; raises ``CodedError`` if it cannot be decoded."""

    async def refresh(self) -> None:
        """Read all facts."""
        self._position, self._cursor = 0, ChainCursor()
        self.reset()
        end = await self._bus.journal.end()
        for stored in await self._bus.journal.read(self._entity):
            self._add(stored)
        self._position = max(self._position, end)  # Other keys' messages leave no gap.
        self.unavailable_reason = ""

    async def open(self) -> None:
        """Read all facts. If one is damaged or foreign, the view is unavailable and everything else
        works."""
        try:
            await self.refresh()
        except CodedError as error:
            if CODES[error.code].retryable:
                raise
            self._on_error(error)

    async def run(self) -> None:
        """Follow every new fact until cancelled."""
        while True:
            try:
                if self.unavailable_reason:
                    await self.refresh()
                    log.info("%s read", self.name)
                async for page in self._bus.feed.follow(Filter(*self._entity), self._position):
                    for stored in page:
                        self._add(stored)
            except Exception as error:  # After any error a fact may be missing.
                self._on_error(error)
            await asyncio.sleep(RETRY_S)

    def _add(self, stored: StoredMessage) -> None:
        if stored.sequence <= self._position:
            return
        if stored.quarantined_through:
            self._cursor.pass_over(stored.chain)
        elif self._cursor.accept(stored.body, stored.chain):
            self.apply(stored)
        else:
            text = f"{stored.sequence} does not continue {self._entity.key}"
            raise Failed("CHAIN_BROKEN", text)
        self._position = stored.sequence

    def _on_error(self, error: Exception) -> None:
        """A lost connection loses no fact: the feed continues at its position. Any other error is
        logged once until it changes, since it may recur every second."""
        why = error.code if isinstance(error, CodedError) else type(error).__name__
        if why in CODES and CODES[why].retryable:
            log.warning("%s not followed", self.name, extra={"code": why})
        elif why != self.unavailable_reason:
            self.unavailable_reason = why
            log.error("%s unavailable, %s", self.name, self.when_unavailable, exc_info=error)
