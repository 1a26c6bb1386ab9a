"""The call board: where runners wait for their calls, and calls hear that their run is to end.

In memory, of one node, used on the loop. What is told here stands in the journal: whoever was not
there to hear it asks the actor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rookery.schemas.calls import KnownCall

__all__ = ["CallBoard"]


class CallBoard:
    """One a node."""

    def __init__(self) -> None:
        self._expected: dict[str, asyncio.Future[KnownCall]] = {}
        self._in_flight: dict[str, list[Callable[[], None]]] = {}

    def expect(self, operation_id: str) -> asyncio.Future[KnownCall]:
        """What is told of the call next. Expect it before it is put on record: what nobody expects
        is told to nobody."""
        expected = self._expected.get(operation_id)
        if expected is None or expected.done():
            expected = asyncio.get_running_loop().create_future()
            self._expected[operation_id] = expected
            expected.add_done_callback(lambda told: self._forget(operation_id, told))
        return expected

    def tell(self, known: KnownCall) -> None:
        """The call has come to something, or waits for somebody."""
        expected = self._expected.get(known.operation_id)
        if expected is not None and not expected.done():
            expected.set_result(known)

    def cancel_run(self, run_id: str) -> None:
        """Ask what is in flight for the run to stop. What it comes to is put on record."""
        for cancel in tuple(self._in_flight.get(run_id, ())):
            cancel()

    @contextmanager
    def in_flight(self, run_id: str, cancel: Callable[[], None]) -> Iterator[None]:
        """Call ``cancel`` if the run is to end meanwhile."""
        cancels = self._in_flight.setdefault(run_id, [])
        cancels.append(cancel)
        try:
            yield
        finally:
            cancels.remove(cancel)
            if not cancels:
                self._in_flight.pop(run_id, None)

    def _forget(self, operation_id: str, told: asyncio.Future[KnownCall]) -> None:
        if self._expected.get(operation_id) is told:
            del self._expected[operation_id]
