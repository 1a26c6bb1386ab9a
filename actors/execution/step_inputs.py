"""The results that each step of a run continued with, and the outcomes of its calls, derived from
its turn's facts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from msgspec import UNSET, UnsetType

from rookery.actors.hooks.changes import injected_inputs, outcome_after_hooks
from rookery.schemas.calls import CallOutcome, RequestedCall
from rookery.schemas.envelope import Fact
from rookery.schemas.facts import code, hook, tool, turn
from rookery.schemas.facts.run_progress import TurnEnd

if TYPE_CHECKING:
    from rookery.actors.execution.history import PastRun

__all__ = [
    "AnsweredBatch",
    "CodeInputs",
    "FactPosition",
    "FoundRuns",
    "RecordedWait",
    "StepInputs",
    "outcomes_of_calls",
]


class FactPosition(NamedTuple):
    """Where a fact is in the journal."""

    sequence: int = 0
    number: int = 0
    """Its number in the message, from 1."""


class RecordedWait(NamedTuple):
    """The wait of a call for a timer."""

    position: FactPosition
    number: int
    """Of the call."""
    until_ms: int


class AnsweredBatch(NamedTuple):
    """The results that a step continued with."""

    calls: tuple[RequestedCall, ...]
    """In order of their numbers."""
    passed_ms: tuple[int, ...]
    whole: bool
    """All open calls had ended."""
    boundary: FactPosition
    """The last outcome, or the fact that the step continued without one."""


class StepInputs:
    """The steps of one run, from its turn's facts in order."""

    def __init__(self, answered_at: Mapping[str, FactPosition]) -> None:
        """``answered_at``: the position of each operation's outcome."""
        self._answered_at = answered_at
        self._requested: dict[str, RequestedCall] = {}
        self._registered: tuple[str, ...] = ()
        self._barrier: tuple[str, ...] = ()
        self._steps, self._step_at = 0, FactPosition()
        self._batches: list[AnsweredBatch] = []

    def add_fact(self, position: FactPosition, fact: Fact) -> None:
        """Add the next fact."""
        match fact:
            case turn.ToolCallsReturned(calls=calls):
                self._requested |= {call.operation_id: call for call in calls}
            case turn.OpsRegistered():
                self._registered, self._barrier = fact.op_refs, fact.barrier_ids
            case turn.ToolCallsResolved() if self._is_open:
                self._close_step(position, () if fact.passed_ms is UNSET else fact.passed_ms)
        match fact:
            case object(step=int()) if not isinstance(fact, TurnEnd):
                if self._is_open:
                    self._batches.append(_empty_batch(self._step_at))
                self._steps, self._step_at = self._steps + 1, position

    def batches(self) -> list[AnsweredBatch]:
        """One batch per step, except for a last step that still waits. If its calls have all ended,
        it continues with them."""
        if self._is_open:
            self._close_step(self._step_at)
        return self._batches

    @property
    def _is_open(self) -> bool:
        """Whether the last step has no recorded results yet."""
        return len(self._batches) < self._steps

    def _close_step(self, position: FactPosition, passed_ms: tuple[int, ...] = ()) -> None:
        barrier, whole = self._barrier, set(self._barrier) == set(self._registered)
        self._barrier = self._registered = ()
        if any(operation not in self._answered_at for operation in barrier):
            return
        calls = sorted(
            (self._requested[operation] for operation in barrier), key=lambda c: c.number
        )
        positions = [self._answered_at[operation] for operation in barrier] if whole else []
        earlier = self._batches[-1].boundary if self._batches else FactPosition()
        boundary = max(earlier, max(positions, default=position))
        self._batches.append(AnsweredBatch(tuple(calls), passed_ms, whole, boundary))


class CodeInputs:
    """The steps of one program of ``run_code``, from its facts in order."""

    def __init__(self, answered_at: Mapping[str, FactPosition]) -> None:
        self._answered_at = answered_at
        self._requested: dict[str, RequestedCall] = {}
        self._last: tuple[FactPosition, code.Stepped] | None = None
        """The step that has no recorded results yet."""
        self._batches: list[AnsweredBatch] = []
        self.steps = 0
        """How many are on record, without its end."""
        self.beside: tuple[RequestedCall, ...] = ()
        """The calls that are in flight and that the last step does not wait for."""

    def add_fact(self, position: FactPosition, fact: code.Stepped | code.Ended) -> None:
        """Add the next fact."""
        self._close_step(fact.given, () if fact.passed_ms is UNSET else fact.passed_ms)
        self._last = None
        if isinstance(fact, code.Stepped):
            self.steps, self._last = fact.number, (position, fact)
            self._requested |= {call.operation_id: call for call in fact.calls}
            others = [name for name in fact.op_refs if name not in fact.barrier_ids]
            self.beside = tuple(self._requested[name] for name in others)

    def batches(self) -> list[AnsweredBatch]:
        """As ``StepInputs.batches``."""
        self._close_step(UNSET, ())
        return self._batches

    def _close_step(self, given: tuple[str, ...] | UnsetType, passed_ms: tuple[int, ...]) -> None:
        if self._last is None:
            return
        (position, step), self._last = self._last, None
        barrier = step.barrier_ids if given is UNSET else given
        if any(operation not in self._answered_at for operation in barrier):
            return
        whole = given is UNSET and set(step.barrier_ids) == set(step.op_refs)
        calls = sorted((self._requested[one] for one in barrier), key=lambda call: call.number)
        self._batches.append(AnsweredBatch(tuple(calls), passed_ms, whole, position))


def _empty_batch(position: FactPosition) -> AnsweredBatch:
    """The batch of a step that requested no calls."""
    return AnsweredBatch((), (), whole=True, boundary=position)


def outcomes_of_calls(
    facts: Iterable[tuple[FactPosition, Fact]],
) -> dict[str, tuple[FactPosition, CallOutcome]]:
    """By operation: the position of its outcome, and the outcome as hooks let the program get it.
    The outcome of a call that is made once more is not its outcome."""
    outcomes: dict[str, tuple[FactPosition, CallOutcome]] = {}
    for position, fact in facts:
        match fact:
            case tool.Completed():
                outcome = CallOutcome(
                    value=fact.value,
                    value_blob=fact.value_blob,
                    duration_ms=fact.duration_ms,
                    sealed=fact.sealed,
                )
                outcomes[fact.operation_id] = position, outcome
            case tool.Failed():
                outcome = CallOutcome(error=fact.error, duration_ms=fact.duration_ms)
                outcomes[fact.operation_id] = position, outcome
            case tool.Refused():
                outcomes[fact.operation_id] = position, CallOutcome(error=fact.error)
            case tool.RetryAllowed():
                outcomes.pop(fact.operation_id, None)
            case hook.ResponseDecided() | hook.ResponseRejected() | hook.Noted():
                if (found := outcomes.get(fact.operation_id or "")) is not None:
                    at, given = found
                    outcomes[fact.operation_id or ""] = at, outcome_after_hooks(given, (fact,))
    return outcomes


class FoundRuns:
    """The runs of programs, from the facts of their turns in order."""

    def __init__(self, answered_at: Mapping[str, FactPosition]) -> None:
        self._answered_at = answered_at
        self.runs: list[PastRun] = []
        self.steps: list[StepInputs | CodeInputs] = []
        """Of each run; those of a model's program are added by ``CodeHistory``."""
        self._numbers: dict[str, int] = {}

    def begin(self, run: PastRun, inputs: CodeInputs | None = None) -> None:
        self.runs.append(run)
        self.steps.append(StepInputs(self._answered_at) if inputs is None else inputs)

    def add(self, position: FactPosition, fact: Fact) -> None:
        """Add a fact of the last run."""
        if not self.runs:
            return
        run = self.runs[-1]
        match fact:
            case tool.Requested():
                self._numbers[fact.operation_id] = fact.number
            case tool.Awaited(until_ms=int(until_ms)):
                number = self._numbers[fact.operation_id]
                run.waits.append(RecordedWait(position, number, until_ms))
            case hook.ResponseDecided() if run.run_id == fact.run:
                run.injected.update(injected_inputs((fact,)))
                if fact.retries_run:
                    self.steps[-1], run.waits = StepInputs(self._answered_at), []
            case _ if isinstance(fact, TurnEnd) and run.run_id == fact.run:
                run.end(position, fact)
        inputs = self.steps[-1]
        if isinstance(inputs, StepInputs):
            inputs.add_fact(position, fact)
