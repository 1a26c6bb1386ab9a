"""A set of asyncio tasks, so that their owner can wait for them or cancel them together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

__all__ = ["TaskSet"]

T = TypeVar("T")


class TaskSet:
    """The tasks that one owner has started and that still run; used on the event loop."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def wait_idle(self) -> None:
        """Wait until all tasks have ended, including those started meanwhile."""
        while self._running:
            await asyncio.wait(set(self._running))

    async def cancel(self, reason: str | None = None) -> None:
        """Cancel all tasks and wait for their end."""
        running = set(self._running)
        for task in running:
            task.cancel(reason)
        await asyncio.gather(*running, return_exceptions=True)
