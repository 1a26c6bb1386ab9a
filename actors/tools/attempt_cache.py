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

from rookery.actors.tools.call_slots import CallAttempt
from rookery.schemas.calls import CallOutcome

__all__ = ["AttemptCache", "AttemptResult"]

HELD_BYTES_MAX: Final = 64 << 20
OVERHEAD_BYTES: Final = 1 << 10
"""Beside its value."""


class AttemptResult(NamedTuple):
    outcome: CallOutcome
    text: bytes
    """The value's canonical JSON; empty for an error."""
    unknown_reason: str = ""
    """Why nobody knows the outcome, if it is so."""
    called: bool = True
    """Else the tool was not called, and the try may be begun again."""


class AttemptCache:
    """One a node; lives on the bus's loop."""

    def __init__(self, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self._held_bytes_max = held_bytes_max
        self._attempts: dict[CallAttempt, asyncio.Future[AttemptResult]] = {}
        self._retained: OrderedDict[CallAttempt, int] = OrderedDict()
        """What came of these is held, so many bytes each; the oldest first."""
        self._held_bytes = 0

    def get(self, place: CallAttempt) -> asyncio.Future[AttemptResult] | None:
        return self._attempts.get(place)

    def begin(
        self, place: CallAttempt, work: Coroutine[Any, Any, AttemptResult]
    ) -> asyncio.Future[AttemptResult]:
        begun = asyncio.ensure_future(work)
        self._attempts[place] = begun
        begun.add_done_callback(lambda over: self._retain(place, over))
        return begun

    def confirm(self, place: CallAttempt) -> None:
        """What came of it is on record."""
        self._attempts.pop(place, None)
        self._held_bytes -= self._retained.pop(place, 0)

    def _retain(self, place: CallAttempt, over: asyncio.Future[AttemptResult]) -> None:
        if self._attempts.get(place) is not over or over.cancelled() or over.exception():
            return
        if not over.result().called:
            del self._attempts[place]
            return
        self._retained[place] = OVERHEAD_BYTES + len(over.result().text)
        self._held_bytes += self._retained[place]
        while self._held_bytes > self._held_bytes_max:
            oldest, size_bytes = self._retained.popitem(last=False)
            self._held_bytes -= size_bytes
            self._attempts[oldest] = _evicted_result()


def _evicted_result() -> asyncio.Future[AttemptResult]:
    lost: asyncio.Future[AttemptResult] = asyncio.get_running_loop().create_future()
    why = "its result was let go before it could be put on record"
    lost.set_result(AttemptResult(CallOutcome(), b"", why))
    return lost
