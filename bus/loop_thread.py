"""An event loop on a thread of its own, which runs a process's bus.

Actors are threads and the bus is asyncio; they meet here only. Actors hand batches to the loop with
``call_soon``. The loop never waits for an actor; only callers outside wait (``run``).
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

__all__ = ["LoopThread", "new_event_loop"]

T = TypeVar("T")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it installs (a third less latency a hop), else the standard loop."""
    try:
        import uvloop  # noqa: PLC0415 - optional by platform.
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class LoopThread:
    """A running event loop that other threads can hand work to."""

    def __init__(self, name: str = "rookery-bus") -> None:
        self.loop = new_event_loop()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def call_soon(self, call: Callable[..., object], *args: object) -> None:
        """Schedule a call on the loop. After ``close`` the call is dropped."""
        try:
            if threading.current_thread() is self._thread:
                self.loop.call_soon(call, *args)
            else:
                self.loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            if not self.loop.is_closed():
                raise

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run ``work`` on the loop and wait for it. Never call this on the loop itself."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("run() on the loop's own thread would wait for ever")
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel running tasks, stop the loop and join its thread."""
        if self.loop.is_closed():
            return
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
