"""``Resumptions``: how many parked runs an approval resumes at once, the last answered first.

When many approvals are answered together, their runs would resume at the same time, and a new run
would wait for all of them. A run counts until it has executed, at most ``WAIT_S``: its call may
take long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from rookery.bus.ports import wait_first

__all__ = ["Resumptions"]

AT_ONCE_MAX = 6
"""More do not end sooner, and a new run beside them waits longer."""
WAIT_S = 0.25


class Resumptions:
    """One per node; lives on the bus's loop."""

    def __init__(self, is_executing: Callable[[str], bool]) -> None:
        """``is_executing``: whether this node executes a run now."""
        self._is_executing = is_executing
        self._count = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._executed: dict[str, asyncio.Future[None]] = {}
        """By run, what ends its resumption."""

    @asynccontextmanager
    async def admit(self, run_id: str) -> AsyncIterator[None]:
        """Wait for the run's turn; on leaving, until the run has executed. A run that has not
        parked has nothing to wait for."""
        if self._is_executing(run_id):
            yield
            return
        await self._enter()
        try:
            yield
            await self._wait_executed(run_id)
        finally:
            self._pass_on()

    def end(self, run_id: str) -> None:
        """Note that the run has executed until it ended or parked."""
        executed = self._executed.pop(run_id, None)
        if executed is not None and not executed.done():
            executed.set_result(None)

    async def _wait_executed(self, run_id: str) -> None:
        executed = asyncio.get_running_loop().create_future()
        self._executed[run_id] = executed
        await wait_first((executed,), WAIT_S)
        if self._executed.get(run_id) is executed:
            del self._executed[run_id]

    async def _enter(self) -> None:
        if self._count < AT_ONCE_MAX:
            self._count += 1
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(admitted)
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Admit the newest that waits."""
        while self._waiting:
            admitted = self._waiting.pop()
            if not admitted.done():
                admitted.set_result(None)
                return
        self._count -= 1
