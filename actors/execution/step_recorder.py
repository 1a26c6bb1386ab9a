"""``StepRecorder``: records one run in the actors: its steps, its calls, its parking and its end.

Steps are numbered from the run's first one. A resumed driver repeats steps that are recorded: these
are counted and not recorded twice. A cancellation or an end in the meantime is noticed at the next
step. The ``turns`` decide which facts a step leaves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.execution.driver import AwaitModel, CallsRequested
from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.hooks.points import Hooked
from rookery.actors.kernel.executors import AskActor
from rookery.actors.messages import (
    ActiveRunView,
    CallProgress,
    CallsQuery,
    CallsView,
    ParkRun,
    RecordCodeStep,
    RecordHooks,
    RecordOutcome,
    RecordStep,
    TurnInput,
)
from rookery.actors.protection.sensitive_values import CallSeal, SensitiveParts
from rookery.actors.sandbox import ProgramCall, ToolResult
from rookery.actors.turn_inputs import cancelled_result, end_run, end_unexecuted, request_calls
from rookery.bus.ports import IN_FACT_BYTES_MAX, Blobs
from rookery.schemas.calls import CallArguments, CallOutcome, RequestedCall
from rookery.schemas.codec import encode_json
from rookery.schemas.envelope import Fact
from rookery.schemas.errors import Refused
from rookery.schemas.facts.hook import HookFact
from rookery.schemas.ids import derived_uuid7
from rookery.schemas.run import RunOutput, RunResult, RunStatus

__all__ = ["ParkRequested", "RunEnded", "StepRecorder", "operation_id", "parked_output"]

BATCH_BYTES_MAX = 128 << 10
"""Limit for the arguments of one step, whose facts are one message."""
PARKED_OUTPUT_BYTES_MAX = 4 << 10
"""Of output in the fact and the state of a parked run; a longer one is in the blob store."""
TIME_STEPS_MAX = 1_000
"""How many timers may fire before the elapsed time is recorded."""


class RunEnded(Exception):
    """The run's end is recorded, or it must end now."""


class ParkRequested(Exception):
    """The run's open calls all wait for slow events, or a hook has interrupted it."""

    def __init__(
        self,
        code: str,
        operations: tuple[str, ...],
        *,
        split: bool = False,
        is_repeatable: bool = False,
        hook: str = "",
        notes: tuple[HookFact, ...] = (),
        model: AwaitModel | None = None,
    ) -> None:
        """``is_repeatable``: all steps waited for all their calls and this one has no timer, so the
        run's record leads to exactly this point. ``notes``: of the ``hook``. ``model``: if the run
        waits for its model."""
        super().__init__(code)
        self.code, self.operations, self.split = code, operations, split
        self.is_repeatable, self.hook, self.notes = is_repeatable, hook, notes
        self.model = model


class _StepInputs(NamedTuple):
    """What a step continues with."""

    given: tuple[str, ...] | UnsetType
    passed_ms: tuple[int, ...]
    outcomes: tuple[RecordOutcome, ...]
    hooked: Hooked


def operation_id(
    started_at_ms: int, session: str, run_id: str, number: int, *, retried: bool = False
) -> str:
    """The id of a run's call. ``retried``: of a program that is executed once more."""
    suffix = "/2" if retried else ""
    return derived_uuid7(started_at_ms, session, run_id, f"{number}{suffix}")


class StepRecorder:
    """One per run, while the run has a driver."""

    def __init__(
        self,
        ask: AskActor,
        blobs: Blobs,
        session: str,
        view: ActiveRunView,
        begin_step: Callable[[Iterable[str]], asyncio.Future[None]],
    ) -> None:
        """``begin_step``: says that outcomes of these calls are being recorded, until the future is
        resolved."""
        self._ask, self._blobs, self._session, self._view = ask, blobs, session, view
        self._begin_step = begin_step
        self.run_id = view.run_id
        self._steps = 0
        """The number of steps taken, including repeated ones, without the last."""
        self._operation_ids: dict[int, str] = {}
        self._answered = not view.calls
        self._answered_operations: tuple[str, ...] | UnsetType = UNSET
        """The operations answered since the last step, if they were not all it waited for."""
        self._passed_ms: list[int] = []
        """By how much the clock advanced since then."""
        self._sensitive: Mapping[str, SensitiveParts] = {}
        self._seal: CallSeal | None = None
        self._outcomes: list[RecordOutcome] = []
        """The outcomes that the driver got before they were recorded."""
        self._hooked = Hooked()
        """What hooks said since the last step."""

    def resume_at(self, steps: int, *, answered: bool) -> None:
        """Continue after this many steps. ``answered``: whether the driver got the last step's
        results."""
        self._steps, self._answered = steps, answered

    def hide(self, sensitive: Mapping[str, SensitiveParts], seal: CallSeal) -> None:
        """Seal the sensitive arguments of these tools."""
        self._sensitive, self._seal = sensitive, seal

    # --- calls ------------------------------------------------------------------------------------

    def operation_id(self, number: int) -> str:
        """The call's id, equal whenever and wherever the call is made."""
        found = self._operation_ids.get(number)
        if found is None:
            view = self._view
            found = operation_id(
                view.started_at_ms, self._session, view.run_id, number, retried=view.retried
            )
            self._operation_ids[number] = found
        return found

    async def to_requested_calls(self, calls: Sequence[ProgramCall]) -> tuple[RequestedCall, ...]:
        """The calls as facts hold them; large arguments become blobs."""
        bytes_max = min(IN_FACT_BYTES_MAX, BATCH_BYTES_MAX // max(1, len(calls)))
        return tuple([await self._to_requested_call(call, bytes_max) for call in calls])

    async def to_tool_result(
        self, reader: RunHistoryReader, number: int, outcome: CallOutcome
    ) -> ToolResult:
        """The outcome of a call as the program gets it."""
        operation_id = self.operation_id(number) if outcome.sealed is True else ""
        return await reader.to_tool_result(self._session, operation_id, outcome)

    async def fetch_calls(self) -> tuple[CallProgress, ...]:
        """The progress of all calls the run has requested."""
        return (await self._calls_view()).calls

    async def fetch_names(self) -> frozenset[str]:
        """The names of the tools that the run has called."""
        return (await self._calls_view()).names

    async def _calls_view(self) -> CallsView:
        return await self._ask("turn", self._session, CallsQuery(run_id=self.run_id), CallsView)

    async def _to_requested_call(self, call: ProgramCall, bytes_max: int) -> RequestedCall:
        arguments = CallArguments(args=call.args, kwargs=call.kwargs)
        parts = self._sensitive.get(call.name)
        if parts is not None and self._seal is not None:
            arguments = self._seal.seal_arguments(parts, self.operation_id(call.id), arguments)
        requested = RequestedCall(
            operation_id=self.operation_id(call.id),
            number=call.id,
            name=call.name,
            digest=call.digest,
            awaited=call.awaited,
            arguments=arguments,
        )
        text = encode_json(arguments)
        if len(text) <= bytes_max:
            return requested
        blob = await self._blobs.put(text)
        return msgspec.structs.replace(requested, arguments=UNSET, arguments_blob=blob)

    # --- steps ------------------------------------------------------------------------------------

    @property
    def is_recovering(self) -> bool:
        """Whether the next step is recorded already."""
        return self._steps < self._view.steps

    @property
    def has_only_time_passed(self) -> bool:
        """Only timers have fired since the last step, fewer than the limit: the time is recorded
        with the next request."""
        return self._answered_operations == () and len(self._passed_ms) < TIME_STEPS_MAX

    def set_answers(
        self,
        given: tuple[str, ...] | UnsetType,
        passed_ms: int,
        unrecorded: Sequence[RecordOutcome] = (),
    ) -> None:
        """Set the results for the next recorded step. ``given``: the operations, if not all had
        ended; ``passed_ms``: 0 if the clock did not advance; ``unrecorded``: the outcomes that the
        step is to record."""
        self._answered_operations, self._answered = given, True
        self.add_outcomes(unrecorded)
        if passed_ms:
            self._passed_ms.append(passed_ms)

    def add_outcomes(self, unrecorded: Sequence[RecordOutcome]) -> None:
        """Add outcomes that the next step is to record."""
        self._outcomes += unrecorded

    def add_hooked(self, hooked: Hooked) -> None:
        """Add what hooks said of results, of the next recorded step, or of its calls."""
        if hooked.facts:
            self._hooked = Hooked(self._hooked.facts + hooked.facts, hooked.executed)

    async def record_hooks(self, of_call: tuple[HookFact, ...] = (), *, retry: str = "") -> None:
        """Record what hooks said without a step, and the outcomes so far. ``of_call`` and
        ``retry``: only what they said of this operation, which is to be made once more."""
        outcomes, self._outcomes = tuple(self._outcomes), []
        hooks = of_call
        if not retry:
            hooks, self._hooked = self._hooked.facts, Hooked()
        command = RecordHooks(
            run_id=self.run_id, steps=self._steps, outcomes=outcomes, hooks=hooks, retry=retry
        )
        view = await self._with_outcomes(command, outcomes)
        if view.cancelling or view.ended:
            raise RunEnded

    async def record_request(
        self,
        requested: CallsRequested,
        calls: tuple[RequestedCall, ...],
        under_way: Sequence[str],
    ) -> None:
        """Record the next step, after which the driver waits for calls. ``calls``: the new ones;
        ``under_way``: the operations of all that are open."""
        barrier = [self.operation_id(call.id) for call in requested.calls]
        moves = request_calls(calls, barrier, under_way, requested.wanted)
        await self.record(
            (*requested.inputs, *moves), calls, requested.timer_ms, answers=requested.answers
        )
        self._answered = False

    async def record(
        self,
        moves: tuple[TurnInput, ...],
        calls: tuple[RequestedCall, ...] = (),
        timer_ms: int | None = None,
        *,
        answers: tuple[Fact, ...] = (),
        questions: tuple[Fact, ...] = (),
    ) -> None:
        """Record the next step, unless it is recorded; raises ``RunEnded`` if the run has ended."""
        taken = self._take_inputs()
        if self._steps <= self._view.steps:
            return
        step = RecordStep(
            run_id=self.run_id,
            number=self._steps,
            start=self._view.start,
            given=taken.given,
            passed_ms=taken.passed_ms,
            outcomes=taken.outcomes,
            hooks=taken.hooked.facts,
            executed=dict(taken.hooked.executed),
            moves=moves,
            calls=calls,
            timer_ms=UNSET if timer_ms is None else timer_ms,
            answers=answers,
            questions=questions,
        )
        try:
            view = await self._commit(step)
        except Refused:  # Nothing of it is recorded: the run ends with the outcomes so far.
            self._steps, self._outcomes = self._steps - 1, list(taken.outcomes)
            self._answered_operations, self._passed_ms = taken.given, list(taken.passed_ms)
            raise
        if view.cancelling or view.ended:
            raise RunEnded

    def _take_inputs(self) -> _StepInputs:
        """What the next step continues with; it is the last one from now on."""
        self._steps += 1
        taken = _StepInputs(
            self._answered_operations,
            tuple(self._passed_ms),
            tuple(self._outcomes),
            self._hooked,
        )
        self._answered_operations, self._passed_ms = UNSET, []
        self._outcomes, self._hooked = [], Hooked()
        return taken

    async def _commit(self, step: RecordStep) -> ActiveRunView:
        return await self._with_outcomes(step, step.outcomes)

    async def _with_outcomes(
        self,
        command: RecordStep | RecordCodeStep | RecordHooks | ParkRun,
        outcomes: Sequence[RecordOutcome],
    ) -> ActiveRunView:
        """Record what contains these outcomes."""
        if not outcomes:
            return await self._ask("turn", self._session, command, ActiveRunView)
        ended = self._begin_step([one.operation_id for one in _with_those_of_programs(outcomes)])
        try:
            return await self._ask("turn", self._session, command, ActiveRunView)
        finally:
            ended.set_result(None)

    # --- rest, and the end ------------------------------------------------------------------------

    async def park(
        self, request: ParkRequested, snapshot: tuple[str, str], output: RunOutput
    ) -> bool:
        """Park the run; true if it is still to continue. ``snapshot``: its id and blob; ``output``:
        what it has printed. The outcomes that its driver has are recorded; what hooks said of
        them is not, so that they are invoked again when the run is resumed."""
        snapshot_id, blob = snapshot
        model = request.model
        text = encode_json(output)
        is_long = len(text) > PARKED_OUTPUT_BYTES_MAX
        command = ParkRun(
            run_id=self.run_id,
            code=request.code,
            snapshot_id=snapshot_id,
            snapshot_blob=blob,
            waits_for=request.operations,
            split=request.split,
            hook=request.hook,
            outcomes=tuple(self._outcomes),
            notes=request.notes,
            output=UNSET if is_long or output == RunOutput() else output,
            output_blob=await self._blobs.put(text) if is_long else UNSET,
            answers=() if model is None else model.answers,
            until_ms=UNSET if model is None else model.until_ms,
            lease=UNSET if model is None else model.lease,
        )
        view = await self._with_outcomes(command, command.outcomes)
        if view.cancelling:
            await self._ask("turn", self._session, end_unexecuted(view, output), ActiveRunView)
        return not view.cancelling and not view.ended

    async def end(
        self,
        result: RunResult,
        *,
        kept: bool,
        moves: tuple[TurnInput, ...] | None = None,
        answers: tuple[Fact, ...] = (),
        withheld: RunResult | None = None,
    ) -> ActiveRunView:
        """Record the last step as the driver took it. The run may have ended differently
        meanwhile. If the turn refuses what hooks said, the run can still be failed without it."""
        hooked, self._hooked = self._hooked, Hooked()
        step = RecordStep(
            run_id=self.run_id,
            number=self._next_number,
            start=self._view.start,
            answered=self._answered,
            given=self._answered_operations,
            passed_ms=tuple(self._passed_ms),
            outcomes=tuple(self._outcomes),
            hooks=hooked.facts,
            moves=end_run(self.run_id, result) if moves is None else moves,
            answers=answers,
            result=result,
            kept=kept,
            withheld=UNSET if withheld is None else withheld,
        )
        return await self._commit(await self._with_blobs(step))

    async def end_stopped(self, result: RunResult | None) -> None:
        """Record the last step of a stopped driver as a cancellation."""
        step = RecordStep(
            run_id=self.run_id,
            number=self._next_number,
            start=self._view.start,
            answered=False,
            moves=end_run(self.run_id, cancelled_result(UNSET)),
            result=cancelled_result(UNSET if result is None else result),
        )
        await self._ask("turn", self._session, await self._with_blobs(step), ActiveRunView)

    async def _with_blobs(self, step: RecordStep) -> RecordStep:
        """Replace large results by blobs."""
        result = step.result
        if step.withheld is not UNSET:
            text = encode_json(step.withheld)
            if len(text) > IN_FACT_BYTES_MAX:
                blob = await self._blobs.put(text)
                step = msgspec.structs.replace(step, withheld=UNSET, withheld_blob=blob)
        assert result is not UNSET, "only a last step has one"
        if result.status is RunStatus.CANCELLED:
            result = cancelled_result(result)
        text = encode_json(result)
        if len(text) <= IN_FACT_BYTES_MAX:
            return step
        trimmed = msgspec.structs.replace(
            result, result=None, stdout="", stderr="", external_calls=(), diagnostics=()
        )
        blob = await self._blobs.put(text)
        return msgspec.structs.replace(step, result=trimmed, result_blob=blob)

    @property
    def _next_number(self) -> int:
        """The number of the run's last step, whatever its driver's progress."""
        return max(self._steps, self._view.steps) + 1


def _with_those_of_programs(outcomes: Iterable[RecordOutcome]) -> Iterator[RecordOutcome]:
    """The outcomes, and those that are recorded with the end of a program."""
    for outcome in outcomes:
        yield outcome
        if outcome.code is not UNSET:
            yield from outcome.code.outcomes


async def parked_output(blobs: Blobs, view: ActiveRunView) -> RunOutput:
    """What a run had printed when it was parked last."""
    if view.output_blob is not UNSET:
        return msgspec.json.decode(await blobs.get(view.output_blob), type=RunOutput)
    return RunOutput() if view.output is UNSET else view.output
