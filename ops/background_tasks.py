"""What a node does beside its commands as long as it lives: reading along, listening for a drain.

A watch that fails is begun again after a pause, whatever it failed of, for nobody waits for it and
nobody else would notice. Owns when; what is watched is its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

__all__ = ["Watch", "Watches"]

log = logging.getLogger(__name__)

AGAIN_S: Final = 3.0
SETTLED_S: Final = 10.0
"""Who has not failed for so long is well again: longer than any watch sleeps."""

Watch = Callable[[], Coroutine[Any, Any, None]]


class Watches:
    """Lives on the bus's loop; ``failing`` may be asked from anywhere."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._failing: dict[str, str] = {}

    @property
    def failing(self) -> Mapping[str, str]:
        """Those that failed lately, and of what."""
        return dict(self._failing)

    async def begin(self, watches: Mapping[str, Watch]) -> None:
        loop = asyncio.get_running_loop()
        self._tasks += [loop.create_task(self._keep(*named)) for named in watches.items()]

    async def end(self) -> None:
        """Cancel them all, and wait for it."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, name: str, watch: Watch) -> None:
        loop = asyncio.get_running_loop()
        while True:
            well = loop.call_later(SETTLED_S, self._failing.pop, name, None)
            try:
                return await watch()
            except Exception as error:
                self._note(name, error)
            finally:
                well.cancel()
            await asyncio.sleep(AGAIN_S)

    def _note(self, name: str, error: Exception) -> None:
        """One line for the same failure: it may come again and again."""
        why = type(error).__name__
        if self._failing.get(name) != why:
            self._failing[name] = why
            log.error("a watch failed", extra={"watch": name}, exc_info=error)
