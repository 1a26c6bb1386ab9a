"""``TaskSet``: the running tasks of one part of the node, to wait for or to cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

__all__ = ["TaskSet"]


class TaskSet:
    """Used on the loop only."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def wait_idle(self) -> None:
        """Wait until all tasks have ended, including those started meanwhile."""
        while self._running:
            await asyncio.wait(set(self._running))

    async def cancel(self) -> None:
        """Cancel the tasks that are running."""
        running = set(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
