"""The attempts of calls that this process has begun, so that it begins none twice.

A result stays until it is committed. If the session has moved to another node, it may never be, so
the cache is bounded: when a result is evicted, a marker of some hundred bytes remains, and the
outcome of that attempt counts as unknown.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Coroutine
from typing import Any, Final, NamedTuple

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.tools.call_slots import CallAttempt
from rookery.actors.tools.faults import fault, logged_fault
from rookery.actors.tools.hosts.host import NotCalled, OutcomeUnknown
from rookery.schemas.calls import CallOutcome
from rookery.schemas.digest import canonical_json

__all__ = ["AttemptCache", "AttemptResult", "attempt_result", "failed_attempt"]

HELD_BYTES_MAX: Final = 64 << 20
OVERHEAD_BYTES: Final = 1 << 10
"""Per result, beside its value."""


class AttemptResult(NamedTuple):
    outcome: CallOutcome
    text: bytes
    """The value's canonical JSON; empty for an error."""
    unknown_reason: str = ""
    """Why the outcome is unknown; empty if it is known."""
    called: bool = True
    """If false, the tool was not called, and the attempt may begin again."""

    @property
    def metrics_outcome(self) -> str:
        """The outcome as the metrics count it."""
        if self.unknown_reason or not self.called:
            return "unknown" if self.called else "not_called"
        if self.outcome.error is UNSET:
            return "completed"
        return "timed_out" if self.outcome.error.code == "TIMEOUT_TOOL" else "failed"


class AttemptCache:
    """One per node; lives on the bus loop."""

    def __init__(self, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self._held_bytes_max = held_bytes_max
        self._attempts: dict[CallAttempt, asyncio.Future[AttemptResult]] = {}
        self._retained: OrderedDict[CallAttempt, int] = OrderedDict()
        """Bytes of each retained result, the oldest first."""
        self._held_bytes = 0

    def get(self, attempt: CallAttempt) -> asyncio.Future[AttemptResult] | None:
        return self._attempts.get(attempt)

    def begin(
        self, attempt: CallAttempt, work: Coroutine[Any, Any, AttemptResult]
    ) -> asyncio.Future[AttemptResult]:
        begun = asyncio.ensure_future(work)
        self._attempts[attempt] = begun
        begun.add_done_callback(lambda ended: self._retain(attempt, ended))
        return begun

    def put(self, attempt: CallAttempt, result: AttemptResult) -> asyncio.Future[AttemptResult]:
        """Add an attempt that has ended."""
        ended = _ended(result)
        self._attempts[attempt] = ended
        self._retain(attempt, ended)
        return ended

    def confirm(self, attempt: CallAttempt) -> None:
        """Drop a result that was committed."""
        self._attempts.pop(attempt, None)
        self._held_bytes -= self._retained.pop(attempt, 0)

    def _retain(self, attempt: CallAttempt, ended: asyncio.Future[AttemptResult]) -> None:
        if self._attempts.get(attempt) is not ended or ended.cancelled() or ended.exception():
            return
        if not ended.result().called:
            del self._attempts[attempt]
            return
        self._retained[attempt] = OVERHEAD_BYTES + len(ended.result().text)
        self._held_bytes += self._retained[attempt]
        while self._held_bytes > self._held_bytes_max:
            oldest, size_bytes = self._retained.popitem(last=False)
            self._held_bytes -= size_bytes
            self._attempts[oldest] = _evicted_result()


def _evicted_result() -> asyncio.Future[AttemptResult]:
    reason = "its result was evicted before it was committed"
    return _ended(AttemptResult(CallOutcome(), b"", reason))


def _ended(result: AttemptResult) -> asyncio.Future[AttemptResult]:
    ended: asyncio.Future[AttemptResult] = asyncio.get_running_loop().create_future()
    ended.set_result(result)
    return ended


def attempt_result(outcome: CallOutcome) -> AttemptResult:
    """The outcome, cut to the limits of storage."""
    if outcome.error is not UNSET:
        wrong = fault(outcome.error.code, outcome.error.message)
        return AttemptResult(replace(outcome, error=wrong), b"")
    return AttemptResult(outcome, canonical_json(outcome.value))


def failed_attempt(name: str, call_id: str, error: Exception, *, sensitive: bool) -> AttemptResult:
    """Hosts return failures; any exception but their own two is a defect and fails the call."""
    match error:
        case OutcomeUnknown():
            reason = fault("RECOVERY_REQUIRED", str(error) or "its host gave no reason").message
            return AttemptResult(CallOutcome(), b"", reason)
        case NotCalled():
            return AttemptResult(CallOutcome(), b"", called=False)
    wrong = logged_fault(name, call_id, error, sensitive=sensitive)
    return AttemptResult(CallOutcome(error=wrong), b"")
