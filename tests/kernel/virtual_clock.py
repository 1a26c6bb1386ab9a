"""An event loop with virtual time: waiting costs no real time.

A simulated world runs on it in one thread, in an order that depends only on its seed, so a failure
can be repeated.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Clockwork(asyncio.SelectorEventLoop):
    """Time stops while anything can run, then jumps to the next timer."""

    def __init__(self) -> None:
        self._now_s = 0.0
        super().__init__(_Skipping(self.skip))

    def time(self) -> float:
        return self._now_s

    def skip(self, seconds: float) -> None:
        self._now_s += seconds

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        return self.run_until_complete(asyncio.wait_for(work, timeout_s))


class _Skipping(selectors.SelectSelector):
    """A selector that waits for no file."""

    def __init__(self, skip: Callable[[float], None]) -> None:
        super().__init__()
        self._skip = skip

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen again")
        self._skip(max(0.0, timeout))
        return []
