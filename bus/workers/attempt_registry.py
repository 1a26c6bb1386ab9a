"""A worker's record of its calls, by the id that all attempts of a call share.

A job may arrive late: its node was cut off, and another node continued the call. So a worker
records the last attempt of each call, and refuses earlier and cancelled ones. A node that takes a
call over queries the state of an attempt; the query cancels an attempt that has not begun. The
class reads no clock: the time is an argument, in seconds of any clock that does not run backwards.

The limits are ``CALLS_MAX`` calls and ``CANCELLED_MAX`` cancelled ones, for ``AGE_S`` or the
longest time any job had, whichever is longer. ``remembers_ms`` says how far back the record is
complete.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

import msgspec

from rookery.schemas.worker_protocol import AttemptState, Job

__all__ = ["AGE_S", "CALLS_MAX", "CANCELLED_MAX", "AttemptRegistry"]

CALLS_MAX: Final = 50_000
"""About 20 MB."""
CANCELLED_MAX: Final = 10_000
AGE_S: Final = 3_600.0


class _Attempt(msgspec.Struct, gc=False):
    """The last attempt of a call."""

    number: int
    job_id: str
    state: AttemptState
    at_s: float
    """Time of the last change of its state."""


class _CancelledAttempt(NamedTuple):
    number: int
    """This attempt and earlier ones are cancelled."""
    at_s: float


class AttemptRegistry:
    """The attempts of one worker."""

    def __init__(self, now_s: float, *, calls_max: int = CALLS_MAX) -> None:
        self._calls_max, self._age_s, self._complete_since_s = calls_max, AGE_S, now_s
        self._attempts: OrderedDict[str, _Attempt] = OrderedDict()
        """In order of their last change."""
        self._cancelled: OrderedDict[str, _CancelledAttempt] = OrderedDict()

    def reason_to_refuse(self, job: Job) -> str:
        """Why the job may not begin; empty if it may."""
        called_off = self._cancelled.get(job.call_id)
        if called_off is not None and job.attempt <= called_off.number:
            return f"attempt {job.attempt} of the call was cancelled"
        last = self._attempts.get(job.call_id)
        if last is not None and job.attempt < last.number:
            return f"attempt {last.number} of the call came before attempt {job.attempt}"
        return ""

    def begin(self, job: Job, now_s: float) -> None:
        """Record the start of the job. A call without an id cannot be recorded."""
        self._age_s = max(self._age_s, job.left_ms / 1_000)
        last = self._attempts.get(job.call_id)
        again = last is not None and last.number == job.attempt
        if job.call_id and not (again and last and last.state is not AttemptState.NOT_STARTED):
            self._attempts[job.call_id] = _Attempt(job.attempt, job.id, AttemptState.RUNNING, now_s)
            self._attempts.move_to_end(job.call_id)
            self._evict(now_s)

    def end(self, job: Job, state: AttemptState, now_s: float) -> None:
        """Record the end of the job."""
        last = self._attempts.get(job.call_id)
        if last is not None and last.job_id == job.id:
            last.state, last.at_s = state, now_s
            self._attempts.move_to_end(job.call_id)

    def query_or_cancel(self, call_id: str, number: int, now_s: float) -> tuple[AttemptState, str]:
        """State of an attempt, and its job. An attempt that has not begun is cancelled."""
        last = self._attempts.get(call_id)
        if last is not None and last.number > number:
            return AttemptState.UNKNOWN, ""
        if (
            last is not None
            and last.number == number
            and last.state is not AttemptState.NOT_STARTED
        ):
            return last.state, last.job_id
        known = self._cancelled.pop(call_id, None)
        number = number if known is None else max(number, known.number)
        self._cancelled[call_id] = _CancelledAttempt(number, now_s)
        self._evict(now_s)
        return AttemptState.NOT_STARTED, ""

    def retention_ms(self, now_s: float) -> int:
        """How far back the record is complete."""
        return max(0, int(1_000 * (now_s - self._complete_since_s)))

    def _evict(self, now_s: float) -> None:
        """Remove the oldest attempts, except running ones."""
        while self._attempts:
            call_id, oldest = next(iter(self._attempts.items()))
            if not (len(self._attempts) > self._calls_max or oldest.at_s < now_s - self._age_s):
                break
            if oldest.state is AttemptState.RUNNING:
                self._attempts.move_to_end(call_id)
                break
            del self._attempts[call_id]
            self._complete_since_s = max(self._complete_since_s, oldest.at_s)
        while self._cancelled:
            oldest_off = next(iter(self._cancelled.values()))
            if len(self._cancelled) <= CANCELLED_MAX and oldest_off.at_s >= now_s - self._age_s:
                break
            self._cancelled.popitem(last=False)
