"""The background tasks of a node: its projections, its list of approvers, its drain request.

A task that fails restarts after a pause, whatever the error: no caller waits for it, so no caller
would see the error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final

from rookery.bus.ports import Claims
from rookery.schemas.errors import Failed

__all__ = ["BackgroundTask", "BackgroundTasks", "poll_drain"]

log = logging.getLogger(__name__)

DRAIN_POLL_S: Final = 1.0
RESTART_PAUSE_S: Final = 3.0
STABLE_AFTER_S: Final = 10.0
"""A task without a failure for so long is healthy again; longer than any task sleeps."""

BackgroundTask = Callable[[], Coroutine[Any, Any, None]]


class BackgroundTasks:
    """Lives on the bus's loop; ``failing`` may be read from any thread."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []
        self._failing: dict[str, str] = {}

    @property
    def failing(self) -> Mapping[str, str]:
        """The tasks that failed lately, with the name of the error."""
        return dict(self._failing)

    async def start(self, tasks: Mapping[str, BackgroundTask]) -> None:
        loop = asyncio.get_running_loop()
        self._tasks += [loop.create_task(self._restart_forever(*named)) for named in tasks.items()]

    async def stop(self) -> None:
        """Cancel all tasks and wait until they have ended."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _restart_forever(self, name: str, task: BackgroundTask) -> None:
        loop = asyncio.get_running_loop()
        while True:
            healthy = loop.call_later(STABLE_AFTER_S, self._failing.pop, name, None)
            try:
                return await task()
            except Exception as error:
                self._record_failure(name, error)
            finally:
                healthy.cancel()
            await asyncio.sleep(RESTART_PAUSE_S)

    def _record_failure(self, name: str, error: Exception) -> None:
        """Log one line per kind of failure, however often it repeats."""
        why = type(error).__name__
        if self._failing.get(name) != why:
            self._failing[name] = why
            log.error("background task failed", extra={"task": name}, exc_info=error)


async def poll_drain(claims: Claims, node: str, on_drain: Callable[[], object]) -> None:
    """Wait for the request to drain the node, and pass it on. The request is a claim: it reaches a
    node that cannot answer, and it expires with the process that made it."""
    name = f"drain.{node}"
    while True:
        await asyncio.sleep(DRAIN_POLL_S)
        try:
            if any(claim.name == name for claim in await claims.list(name)):
                on_drain()
                return
        except Failed as error:
            log.info("drain request could not be read", extra={"code": error.code})
