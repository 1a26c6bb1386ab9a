"""An asyncio event loop without sockets: when nothing can go on, it returns to the host.

That return is where a run sleeps: every frame of the program then stands in linear memory, and
none on the wasm stack. Time is the host's clock; with no call pending, a timer is reached by
letting time pass.
"""

from __future__ import annotations

import asyncio
import asyncio.base_events
import time
from collections.abc import Callable, Coroutine
from typing import Any

__all__ = ["Loop", "PendingCall"]


class PendingCall:
    """An awaited call: what the host must answer, and the future that waits for it."""

    def __init__(self, future: asyncio.Future[Any], details: dict[str, Any]) -> None:
        self.future, self.details, self.told = future, details, False


class Loop(asyncio.base_events.BaseEventLoop):
    """Its own selector: ``select`` is where asyncio would wait for the outside world."""

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

    def untold(self) -> list[dict[str, Any]]:
        """The calls the host has not heard of yet."""
        new = [call for call in self.pending.values() if not call.told]
        for call in new:
            call.told = True
        return [call.details for call in new]

    async def complete_here(self, future: Any) -> Any:
        """``run_until_complete``, where the loop that runs is the host's."""
        return await asyncio.ensure_future(future)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """There are no threads: it is done before this returns."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except StopIteration as error:
            future.set_exception(RuntimeError(f"the function raised {error!r}"))
        except Exception as error:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Nothing is open."""

    def _process_events(self, event_list: list[Any]) -> None:
        """``select`` never returns any."""

    def _write_to_self(self) -> None:
        """Nobody else could wake this loop."""
