"""The tries of calls that this process has begun: none is begun twice, whoever asks how often.

What a try came to is held until it stands. Where its session has gone on elsewhere nobody says so,
and it may come back: so what is held is bounded, and of a try whose result was let go it is still
known, in some hundred bytes, that it was made. It is then one nobody knows the outcome of.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple

from rookery.actors.tools.call_slots import Place
from rookery.schemas.calls import CallOutcome

__all__ = ["Tries", "TryResult"]

HELD_BYTES_MAX: Final = 64 << 20
EACH_BYTES: Final = 1 << 10
"""Beside its value."""


class TryResult(NamedTuple):
    outcome: CallOutcome
    text: bytes
    """The value's canonical JSON; empty for an error."""
    unknown: str = ""
    """Why nobody knows the outcome, if it is so."""
    called: bool = True
    """Else the tool was not called, and the try may be begun again."""


class Tries:
    """One a node; lives on the bus's loop."""

    def __init__(self, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self._held_bytes_max = held_bytes_max
        self._begun: dict[Place, asyncio.Future[TryResult]] = {}
        self._over: OrderedDict[Place, int] = OrderedDict()
        """What came of these is held, so many bytes each; the oldest first."""
        self._held_bytes = 0

    def get(self, place: Place) -> asyncio.Future[TryResult] | None:
        return self._begun.get(place)

    def begin(
        self, place: Place, work: Coroutine[Any, Any, TryResult]
    ) -> asyncio.Future[TryResult]:
        begun = asyncio.ensure_future(work)
        self._begun[place] = begun
        begun.add_done_callback(lambda over: self._hold(place, over))
        return begun

    def stands(self, place: Place) -> None:
        """What came of it is on record."""
        self._begun.pop(place, None)
        self._held_bytes -= self._over.pop(place, 0)

    def _hold(self, place: Place, over: asyncio.Future[TryResult]) -> None:
        if self._begun.get(place) is not over or over.cancelled() or over.exception():
            return
        if not over.result().called:
            del self._begun[place]
            return
        self._over[place] = EACH_BYTES + len(over.result().text)
        self._held_bytes += self._over[place]
        while self._held_bytes > self._held_bytes_max:
            oldest, size_bytes = self._over.popitem(last=False)
            self._held_bytes -= size_bytes
            self._begun[oldest] = _let_go()


def _let_go() -> asyncio.Future[TryResult]:
    lost: asyncio.Future[TryResult] = asyncio.get_running_loop().create_future()
    why = "its result was let go before it could be put on record"
    lost.set_result(TryResult(CallOutcome(), b"", why))
    return lost
