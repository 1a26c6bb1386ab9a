"""What a run went on with, step after step, as the facts of its turn and of its calls tell.

The turn's facts say what each step waited for, what it went on with, and how far its program's time
had gone on; what came of a call, the calls' own facts say. It reads nothing itself and fetches
nothing: answers are ``history``'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import UNSET

from rookery.schemas.calls import RequestedCall
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import turn

__all__ = ["AnsweredBatch", "StepInputs"]


class AnsweredBatch(NamedTuple):
    """What a step went on with."""

    calls: tuple[RequestedCall, ...]
    """By number."""
    passed_ms: tuple[int, ...]
    whole: bool
    """Nothing else was under way."""
    boundary: int
    """Where the last of the answers stands, or that it went on without."""


class StepInputs:
    """One run's steps, from its turn's facts in their order."""

    def __init__(self, answered_at: Mapping[str, int]) -> None:
        """``answered_at``: where the outcome of each operation stands."""
        self._answered_at = answered_at
        self._requested: dict[str, RequestedCall] = {}
        self._registered: tuple[str, ...] = ()
        self._barrier: tuple[str, ...] = ()
        self._steps = self._step_at = 0
        self._batches: list[AnsweredBatch] = []

    def add_fact(self, sequence: int, fact: Fact) -> None:
        """The next fact, which stands at ``sequence``."""
        match fact:
            case turn.ToolCallsReturned(calls=calls):
                self._requested |= {call.operation_id: call for call in calls}
            case turn.OpsRegistered():
                self._registered, self._barrier = fact.op_refs, fact.barrier_ids
            case turn.ToolCallsResolved() if self._is_open:
                self._close_step(sequence, () if fact.passed_ms is UNSET else fact.passed_ms)
        match fact:
            case turn.Completed() | turn.Failed() | turn.Cancelled():
                pass
            case object(step=int()):
                if self._is_open:
                    self._batches.append(_empty_batch(self._step_at))
                self._steps, self._step_at = self._steps + 1, sequence

    def batches(self) -> list[AnsweredBatch]:
        """One a step, but for the last if it still waits. If all that it waits for has come, that
        is what it goes on with."""
        if self._is_open:
            self._close_step(self._step_at)
        return self._batches

    @property
    def _is_open(self) -> bool:
        """Nothing says yet what the last step went on with."""
        return len(self._batches) < self._steps

    def _close_step(self, sequence: int, passed_ms: tuple[int, ...] = ()) -> None:
        barrier, whole = self._barrier, set(self._barrier) == set(self._registered)
        self._barrier = self._registered = ()
        if any(operation not in self._answered_at for operation in barrier):
            return
        calls = sorted(
            (self._requested[operation] for operation in barrier), key=lambda c: c.number
        )
        at = [self._answered_at[operation] for operation in barrier] if whole else []
        earlier = self._batches[-1].boundary if self._batches else 0
        boundary = max(earlier, max(at, default=sequence))
        self._batches.append(AnsweredBatch(tuple(calls), passed_ms, whole, boundary))


def _empty_batch(sequence: int) -> AnsweredBatch:
    """The step at ``sequence`` wanted nothing."""
    return AnsweredBatch((), (), whole=True, boundary=sequence)
