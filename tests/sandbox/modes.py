"""The mode of the guests in the sandbox's tests, by ``ROOKERY_TEST_GUESTS``: ``fibers``,
``threads`` (a guest blocks its thread in a call), or ``pending`` (on fibers, begun on the thread of
the test, and every result comes later, from another one). ``ROOKERY_TEST_GUESTS=threads pytest
tests/sandbox`` tests one of the other two; the programs, results, fuel and snapshots are the same.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from typing import Final

from rookery.actors.sandbox import CallTool, PendingResult, ProgramCall

__all__ = ["BEGINS_HERE", "HAS_FIBERS", "MODES", "in_mode", "pending"]

MODES: Final = ("fibers", "threads", "pending")
_MODE: Final = os.environ.get("ROOKERY_TEST_GUESTS", MODES[0])
assert _MODE in MODES, _MODE
HAS_FIBERS: Final = _MODE != "threads"
BEGINS_HERE: Final = _MODE == "pending"


def in_mode(answer: CallTool) -> CallTool:
    return pending(answer) if _MODE == "pending" else answer


def pending(answer: CallTool) -> CallTool:
    """The same results, each later and from a thread of its own."""

    def begin(call: ProgramCall) -> PendingResult:
        result: PendingResult = Future()

        def bring() -> None:
            try:
                found = answer(call)
            except BaseException as error:
                result.set_exception(error)
            else:
                assert not isinstance(found, Future)
                result.set_result(found)

        threading.Thread(target=bring, name="pending-result", daemon=True).start()
        return result

    return begin
