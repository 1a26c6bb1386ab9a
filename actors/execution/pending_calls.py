"""A run's calls that are under way: which there are, what they wait for, and what came of them.

In memory, for as long as somebody drives the run. It makes no call and ends none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Iterable
from typing import Protocol

from msgspec import UNSET

from rookery.schemas.calls import CallOutcome, CallProgress, RequestedCall

__all__ = ["CallNotifierPort", "PendingCalls"]


class CallNotifierPort(Protocol):
    """Where outcomes of calls are told as soon as they stand."""

    def future(self, operation_id: str) -> asyncio.Future[CallProgress]:
        """What comes of the call."""

    def notify(self, known: CallProgress) -> None:
        """The call has come to this."""

    def drop(self, run_id: str, operation_id: str) -> None:
        """Nobody waits for the call any more."""

    def cancel_run(self, run_id: str) -> None:
        """Nobody waits for the run's calls any more."""


class PendingCalls:
    """One run's. Used on the loop."""

    def __init__(self, board: CallNotifierPort) -> None:
        self._notifier = board
        self._calls: dict[int, RequestedCall] = {}
        self._futures: dict[int, asyncio.Future[CallProgress]] = {}
        self._waits_for: dict[int, str] = {}
        self._outcomes: dict[int, CallOutcome] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._calls

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def operations(self) -> list[str]:
        return [call.operation_id for call in self._calls.values()]

    @property
    def futures(self) -> list[asyncio.Future[CallProgress]]:
        """Done as soon as there is something to listen to."""
        return list(self._futures.values())

    @property
    def any_running(self) -> bool:
        """Whether any that is not answered waits for nobody."""
        return len(self._futures) > len(self._waits_for)

    def add(self, calls: Iterable[RequestedCall]) -> None:
        """To be said before anything can come of them."""
        for call in calls:
            self._calls[call.number] = call
            self._futures[call.number] = self._notifier.future(call.operation_id)

    def collect(self) -> None:
        """Take in what has been told."""
        for number, told in tuple(self._futures.items()):
            if not told.done():
                continue
            known = told.result()
            if known.outcome is UNSET:
                self._waits_for[number] = known.waits_for
                self._futures[number] = self._notifier.future(known.operation_id)
            else:
                self._outcomes[number] = known.outcome
                self._waits_for.pop(number, None)
                del self._futures[number]

    def answered(self, numbers: Iterable[int]) -> list[int]:
        """Those of which something has come."""
        return sorted(number for number in numbers if number in self._outcomes)

    def are_awaited(self, numbers: Iterable[int]) -> bool:
        """Not so of a synchronous call, which stands alone."""
        return all(self._calls[number].awaited for number in numbers)

    def waiting_codes(self, numbers: Iterable[int]) -> dict[str, str]:
        """Those that wait for somebody: by operation, the code of what they wait for."""
        found = self._waits_for
        return {self._calls[n].operation_id: found[n] for n in numbers if n in found}

    def pop(self, numbers: Iterable[int]) -> list[tuple[int, CallOutcome]]:
        """What came of these, which are not open any more."""
        return [(self._calls.pop(number).number, self._outcomes.pop(number)) for number in numbers]

    def drop_except(self, kept: Container[int]) -> list[RequestedCall]:
        """All others are not open any more; those of which nothing has come."""
        self.collect()
        gone = [self._calls.pop(number) for number in tuple(self._calls) if number not in kept]
        for call in gone:
            self._waits_for.pop(call.number, None)
            self._futures.pop(call.number, None)
        return [call for call in gone if self._outcomes.pop(call.number, None) is None]
