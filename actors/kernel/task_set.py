"""Tasks a part of the node has begun on the loop: kept until they end, waited for, given up."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

__all__ = ["TaskSet"]


class TaskSet:
    """Used on the loop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Do this beside everything else."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def wait_idle(self) -> None:
        """Wait until all have ended, those that are begun meanwhile too."""
        while self._running:
            await asyncio.wait(set(self._running))

    async def cancel(self) -> None:
        """Give up what still runs."""
        running = set(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
