"""A thread that calls a function at a steady pace."""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["TICK_S", "Ticker"]

TICK_S = 0.005


class Ticker:
    """Calls ``tick`` two hundred times a second, from ``wake`` until it returns false."""

    def __init__(self, tick: Callable[[], bool]) -> None:
        self._tick = tick
        self._awake, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="sandbox-beat", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._awake.set()

    def close(self) -> None:
        self._stop.set()
        self._awake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._awake.wait()
            self._awake.clear()
            while not self._stop.wait(TICK_S) and self._tick():
                pass
