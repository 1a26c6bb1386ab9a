"""Commands that serve until a signal."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

__all__ = ["serve_until_signal"]


def serve_until_signal(serving: Coroutine[Any, Any, None], stop: Callable[[], None]) -> int:
    """Serve until it ends by itself, or by SIGTERM or SIGINT; ``stop`` is called before."""

    async def until_signal() -> None:
        task = asyncio.ensure_future(serving)

        def end() -> None:
            stop()
            task.cancel()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end)
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(until_signal())
    return 0
