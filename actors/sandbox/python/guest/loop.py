"""The asyncio event loop of the guest: it returns to the host when every task waits.

A run is suspended at that return: all frames of the program are then in linear memory and none on
the wasm stack. With a timer but no pending call, the loop advances the host's clock to the timer.
"""

from __future__ import annotations

import asyncio
import asyncio.base_events
import time
from collections.abc import Callable, Coroutine
from typing import Any

from guest.system.awaited_values import awaitable

__all__ = ["GuestLoop", "PendingCall"]


class PendingCall:
    """An awaited call and the future of its result."""

    def __init__(self, future: asyncio.Future[Any], details: dict[str, Any]) -> None:
        self.future, self.details, self.is_reported = future, details, False


class GuestLoop(asyncio.base_events.BaseEventLoop):
    """An event loop that is its own selector: asyncio calls ``select`` to wait for events."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = self
        self._clock_resolution = 1e-9
        self.set_exception_handler(lambda _loop, _context: None)
        self.pending: dict[int, PendingCall] = {}
        self.timer_s: float | None = None

    def begin(self, program: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self.create_task(program)
        task.add_done_callback(lambda _: self.stop())
        return task

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        return super().create_task(awaitable(coro), **options)

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is not None and timeout <= 0:
            return []
        self.timer_s = timeout
        self._drop_cancelled()
        if self.pending or timeout is None:
            self.stop()
        else:
            time.sleep(timeout)
        return []

    def _drop_cancelled(self) -> None:
        gone = [number for number, call in self.pending.items() if call.future.done()]
        for number in gone:
            del self.pending[number]

    def unreported_calls(self) -> list[dict[str, Any]]:
        """Mark the calls that the host does not know yet as reported, and return them."""
        new = [call for call in self.pending.values() if not call.is_reported]
        for call in new:
            call.is_reported = True
        return [call.details for call in new]

    async def complete_here(self, future: Any) -> Any:
        """``run_until_complete`` within the running loop."""
        return await asyncio.ensure_future(future)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Run the function at once: the guest has no threads."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except StopIteration as error:
            future.set_exception(RuntimeError(f"the function raised {error!r}"))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Do nothing: the loop holds no resource."""

    def _process_events(self, event_list: list[Any]) -> None:
        """Do nothing: ``select`` returns no events."""

    def _write_to_self(self) -> None:
        """Do nothing: the guest has no other thread that wakes this loop."""
