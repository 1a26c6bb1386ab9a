"""What a node does beside its commands as long as it lives: reading along, listening for a drain.

A watch that fails is begun again after a pause, whatever it failed of, for nobody waits for it and
nobody else would notice. Owns when; what is watched is its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

__all__ = ["BackgroundTask", "BackgroundTasks"]

log = logging.getLogger(__name__)

RESTART_PAUSE_S: Final = 3.0
STABLE_AFTER_S: Final = 10.0
"""Who has not failed for so long is well again: longer than any watch sleeps."""

BackgroundTask = Callable[[], Coroutine[Any, Any, None]]


class BackgroundTasks:
    """Lives on the bus's loop; ``failing`` may be asked from anywhere."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._failing: dict[str, str] = {}

    @property
    def failing(self) -> Mapping[str, str]:
        """Those that failed lately, and of what."""
        return dict(self._failing)

    async def start(self, watches: Mapping[str, BackgroundTask]) -> None:
        loop = asyncio.get_running_loop()
        self._tasks += [
            loop.create_task(self._restart_forever(*named)) for named in watches.items()
        ]

    async def stop(self) -> None:
        """Cancel them all, and wait for it."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _restart_forever(self, name: str, watch: BackgroundTask) -> None:
        loop = asyncio.get_running_loop()
        while True:
            well = loop.call_later(STABLE_AFTER_S, self._failing.pop, name, None)
            try:
                return await watch()
            except Exception as error:
                self._record_failure(name, error)
            finally:
                well.cancel()
            await asyncio.sleep(RESTART_PAUSE_S)

    def _record_failure(self, name: str, error: Exception) -> None:
        """One line for the same failure: it may come again and again."""
        why = type(error).__name__
        if self._failing.get(name) != why:
            self._failing[name] = why
            log.error("a watch failed", extra={"watch": name}, exc_info=error)
