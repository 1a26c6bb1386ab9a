"""``CallCoordinator``: the calls of one run, from their request to the step that gets their
outcomes.

Requested calls are recorded first, then awaited. The wait ends with the outcomes, a timer of the
program, the run's time limit, a cancellation, or ``ParkRequested`` if every open call waits for an
approver, a timer or another slow event. If an event ends one of the calls instead of an
attempt, the first outcome ends the wait: the program may race the calls, and the event may take
days. ``PendingCalls`` holds the open calls in memory while the run has a driver.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from math import ceil
from typing import Any, Protocol

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.execution.driver import AwaitModel, CallsRequested
from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.execution.run_hooks import RunHooks
from rookery.actors.execution.step_recorder import ParkRequested, RunEnded, StepRecorder
from rookery.actors.messages import CallProgress, RecordOutcome
from rookery.actors.sandbox import ProgramCall, ToolResult
from rookery.actors.sandbox.sessions import ResultBatch
from rookery.bus.ports import wait_first
from rookery.schemas.calls import (
    WAITING_FOR_AGENT,
    WAITING_FOR_LEASE,
    WAITING_FOR_PEER,
    WAITING_FOR_TASK,
    WAITING_FOR_TIMER,
    CallOutcome,
    RequestedCall,
)
from rookery.schemas.errors import CodedError, Refused

__all__ = ["CallCoordinator", "CallNotifierPort", "PendingCalls", "SyncCalls"]


class CallNotifierPort(Protocol):
    """Notifies of the outcomes of calls once they are committed."""

    def future(self, operation_id: str) -> asyncio.Future[CallProgress]:
        """A future for the call's next progress."""

    def notify(self, progress: CallProgress) -> None:
        """Resolve the call's future."""

    def begin_step(self, operation_ids: Iterable[str]) -> asyncio.Future[None]:
        """A driver commits the outcomes of these calls until it resolves the future."""

    def drop(self, run_id: str, operation_id: str) -> None:
        """Drop a call that its run no longer waits for."""

    def cancel_run(self, run_id: str) -> None:
        """Cancel all calls of a run."""


_SOON = frozenset(
    {
        WAITING_FOR_TIMER,
        WAITING_FOR_LEASE,
        WAITING_FOR_TASK,
        WAITING_FOR_PEER,
        WAITING_FOR_AGENT,
    }
)
"""Waits that may end within a second, and need no person."""


class PendingCalls:
    """The open calls of one run. Used on the loop."""

    def __init__(self, call_notifier: CallNotifierPort) -> None:
        self._notifier = call_notifier
        self._calls: dict[int, RequestedCall] = {}
        self._futures: dict[int, asyncio.Future[CallProgress]] = {}
        self._waits_for: dict[int, str] = {}
        self._by_event: set[int] = set()
        """The calls that an event ends, instead of an attempt."""
        self._outcomes: dict[int, CallOutcome] = {}
        self._unrecorded: dict[int, RecordOutcome] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._calls

    def __len__(self) -> int:
        return len(self._calls)

    @property
    def operations(self) -> list[str]:
        return [call.operation_id for call in self._calls.values()]

    @property
    def futures(self) -> list[asyncio.Future[CallProgress]]:
        """The futures of unfinished calls."""
        return list(self._futures.values())

    @property
    def any_running(self) -> bool:
        """Whether an unfinished call runs now and does not wait for a slow event."""
        return len(self._futures) > len(self._waits_for)

    def is_last_open(self, operation_id: str) -> bool:
        """Whether all other calls have ended."""
        return all(
            future.done() or self._calls[number].operation_id == operation_id
            for number, future in self._futures.items()
        )

    def add(self, calls: Iterable[RequestedCall]) -> None:
        """Add calls; must precede their recording, so that no outcome is missed."""
        for call in calls:
            self._calls[call.number] = call
            self._futures[call.number] = self._notifier.future(call.operation_id)

    def collect(self) -> None:
        """Move the results of resolved futures to the outcomes."""
        for number, future in tuple(self._futures.items()):
            if not future.done():
                continue
            progress = future.result()
            if progress.by_event is True:
                self._by_event.add(number)
            if progress.outcome is UNSET:
                self._waits_for[number] = progress.waits_for
                if not progress.waits_for:  # It is made now.
                    del self._waits_for[number]
                self._futures[number] = self._notifier.future(progress.operation_id)
            else:
                self._outcomes[number] = progress.outcome
                if progress.unrecorded is not UNSET:
                    self._unrecorded[number] = progress.unrecorded
                self._waits_for.pop(number, None)
                del self._futures[number]

    def answered(self, numbers: Iterable[int]) -> list[int]:
        """Those of the calls that have an outcome."""
        return sorted(filter(self._outcomes.__contains__, numbers))

    def are_awaited(self, numbers: Iterable[int]) -> bool:
        """Whether the program awaits the calls; a synchronous call is never awaited."""
        return all(self._calls[number].awaited for number in numbers)

    def any_by_event(self, numbers: Iterable[int]) -> bool:
        """Whether an event ends one of the calls, instead of an attempt."""
        return not self._by_event.isdisjoint(numbers)

    @property
    def may_end_soon(self) -> bool:
        """Whether an open call waits for a timer, a task, or a refresh of its credential."""
        return not _SOON.isdisjoint(self._waits_for.values())

    def waiting_codes(self, numbers: Iterable[int]) -> dict[str, str]:
        """By operation, the code of the slow event that each waiting call waits for."""
        found = self._waits_for
        return {self._calls[n].operation_id: found[n] for n in numbers if n in found}

    def pop(self, numbers: Iterable[int]) -> list[tuple[RequestedCall, CallOutcome]]:
        """Remove these calls and return them with their outcomes."""
        self._by_event.difference_update(numbers)
        return [(self._calls.pop(number), self._outcomes.pop(number)) for number in numbers]

    def pop_unrecorded(self, numbers: Iterable[int]) -> list[RecordOutcome]:
        """Remove and return the outcomes of these calls that are to be recorded."""
        return [self._unrecorded.pop(n) for n in numbers if n in self._unrecorded]

    def cancel(self) -> None:
        """Cancel all futures: outcomes are recorded from now on without waiting for a driver."""
        for future in self._futures.values():
            future.cancel()

    def drop_except(self, kept: Container[int]) -> list[RequestedCall]:
        """Remove all other calls; those without an outcome."""
        self.collect()
        dropped = [self._calls.pop(number) for number in tuple(self._calls) if number not in kept]
        for call in dropped:
            self._waits_for.pop(call.number, None)
            self._by_event.discard(call.number)
            self._futures.pop(call.number, None)
            self._unrecorded.pop(call.number, None)
        return [call for call in dropped if self._outcomes.pop(call.number, None) is None]


BATCH_CALLS_MAX = 500
PARK_AFTER_S = 1.0
"""How long a run stays in memory before it parks for a timer or a credential: to store and restore
its session costs more than to keep it for a second."""
PARK_FOR_MODEL_AFTER_S = 5.0
"""The same for a question that is asked again: there is no session to store, and clients are spared
an interim reply."""
MANY_CALLS = 16
SETTLE_S = 0.02
"""A program that waits for many calls gets their outcomes together, once none has come for so
long: a step for each would be on record with all that are open."""
CLOCK_STEP_S = 0.001
"""Less is left to wait than a loop's clock can measure."""
SLACK_MS = 20
"""The sandbox ends a run whose time is up; this slack covers a run that is suspended."""


class CallCoordinator:
    """One per run; used on the loop. Waiting raises ``RunEnded`` when the run has ended,
    ``TimeoutError`` when its time is up, and ``ParkRequested`` when it should park."""

    def __init__(
        self,
        record: StepRecorder,
        call_notifier: CallNotifierPort,
        reader: RunHistoryReader,
        limit_ms: int,
        hooks: RunHooks,
    ) -> None:
        self._recorder, self._notifier, self._reader = record, call_notifier, reader
        self._hooks = hooks
        self._limit_ms, self._started_s = limit_ms, 0.0
        self._pending = PendingCalls(call_notifier)
        self._has_mixed_steps = False
        """Whether calls of several steps may be open."""
        self._has_resumed_calls = False
        """Whether calls are open that an earlier step waited for."""
        self._has_partial_steps = False
        """Whether a step continued before all its calls had ended."""
        self._loop = asyncio.get_running_loop()
        self._stopped: asyncio.Future[None] = self._loop.create_future()

    async def resume(self, calls: Sequence[RequestedCall], *, split: bool = False) -> None:
        """Start the run's clock with these open calls. ``split``: an earlier step continued before
        all its calls had ended."""
        self._started_s = self._loop.time()
        self._has_mixed_steps = self._has_resumed_calls = self._has_partial_steps = split
        if calls:
            self._pending.add(calls)
            await self._reload_outcomes()

    def stop(self) -> None:
        """Make every wait raise ``RunEnded``."""
        if not self._stopped.done():
            self._stopped.set_result(None)

    def close(self) -> None:
        """The driver waits no more: its run has parked or ended."""
        self._pending.cancel()

    # --- requests ---------------------------------------------------------------------------------

    async def request_and_wait(
        self, requested: CallsRequested, on_recorded: Callable[[], None] = lambda: None
    ) -> tuple[dict[int, ToolResult], int]:
        """Record the requested calls and wait; the outcomes, and by how many ms the driver's clock
        advances. Calls that the program no longer wants are dropped."""
        if len(requested.calls) > BATCH_CALLS_MAX:
            text = (
                f"{len(requested.calls)} calls are awaited together, the limit is {BATCH_CALLS_MAX}"
            )
            raise Refused("EXTERNAL_CALLS_EXCEEDED", text)
        dropped = self._dropped(requested)
        new = [call for call in requested.calls if call.id not in self._pending]
        must_record = bool(new or dropped) or not self._recorder.has_only_time_passed
        if must_record:
            await self._record_request(requested, new)
        on_recorded()
        for call in dropped:
            self._notifier.drop(self._recorder.run_id, call.operation_id)
        try:
            numbers = [call.id for call in requested.calls]
            return await self.wait(numbers, requested.timer_ms, whole=requested.whole)
        except ParkRequested as request:
            if not must_record and not request.hook:
                await self._record_request(requested, [])
            raise

    def _dropped(self, requested: CallsRequested) -> list[RequestedCall]:
        """The calls that the program no longer waits for; none if this is a synchronous call."""
        if not all(call.awaited for call in requested.calls):
            return []
        return self._pending.drop_except({call.id for call in requested.calls})

    async def _record_request(self, requested: CallsRequested, new: Sequence[ProgramCall]) -> None:
        calls = await self._recorder.to_requested_calls(new)
        self._has_mixed_steps |= len(self._pending) > 0 and any(call.awaited for call in calls)
        self._pending.add(calls)
        recovering = self._recorder.is_recovering
        if not recovering:
            await self._hooks.request(calls)
        await self._recorder.record_request(requested, calls, self._pending.operations)
        if recovering:
            await self._reload_outcomes()

    async def _reload_outcomes(self) -> None:
        """Collect outcomes that were committed before this wait began."""
        operations = set(self._pending.operations)
        for progress in await self._recorder.fetch_calls():
            if progress.operation_id in operations and (
                progress.outcome is not UNSET or progress.waits_for
            ):
                self._notifier.notify(progress)

    # --- outcomes ---------------------------------------------------------------------------------

    async def wait(
        self, numbers: Sequence[int], timer_ms: int | None, *, whole: bool = False
    ) -> tuple[dict[int, ToolResult], int]:
        """Wait for the calls; their outcomes, and by how many ms the driver's clock advances.
        ``whole``: no outcome ends the wait before the others."""
        began_s = self._loop.time()
        answered = await self._wait_answered(numbers, began_s, timer_ms, whole=whole)
        passed_ms = 0
        if (timer_ms is not None or self._has_resumed_calls) and self._pending.are_awaited(numbers):
            waited_s = self._loop.time() - began_s
            passed_ms = _passed_ms(waited_s, timer_ms, some=bool(answered))
        are_all = len(answered) == len(numbers)
        operations = UNSET if are_all else tuple(map(self._recorder.operation_id, answered))
        self._has_partial_steps |= not are_all
        unrecorded = self._pending.pop_unrecorded(answered)
        self._recorder.set_answers(operations, passed_ms, unrecorded)
        answers = {
            call.number: await self.judge(
                call, await self._recorder.to_tool_result(self._reader, call.number, outcome)
            )
            for call, outcome in self._pending.pop(answered)
        }
        self._has_resumed_calls = len(self._pending) > 0
        self._has_mixed_steps &= self._has_resumed_calls
        return answers, passed_ms

    async def judge(self, call: RequestedCall, result: ToolResult) -> ToolResult:
        """The result as the program gets it; a hook may let the call be made once more."""
        while self._hooks.judge_results:
            may_retry = call.operation_id in await self._hooks.retriable()
            judged = await self._hooks.result(call, result, may_retry=may_retry)
            if judged is not None:
                return judged
            outcome = await self._next_outcome(call)
            result = await self._recorder.to_tool_result(self._reader, call.number, outcome)
        return result

    async def judge_batch(self, batch: ResultBatch) -> ResultBatch:
        """Results that no recorded step continues with, after their hooks."""
        calls = []
        for one in batch.calls:
            call = RequestedCall(
                operation_id=self._recorder.operation_id(one.number),
                number=one.number,
                name=one.name,
                digest=one.digest,
            )
            calls.append(replace(one, answer=await self.judge(call, one.answer)))
        return replace(batch, calls=tuple(calls))

    async def _next_outcome(self, call: RequestedCall) -> CallOutcome:
        """The outcome of one more attempt, which is on record."""
        number = call.number
        self._pending.add((call,))
        await self._reload_outcomes()
        await self._wait_answered((number,), self._loop.time(), None, whole=True)
        self._recorder.add_outcomes(self._pending.pop_unrecorded((number,)))
        ((_, outcome),) = self._pending.pop((number,))
        return outcome

    async def wait_progress(self) -> None:
        """Wait until an open call ends, or waits for something else; the run's time stops."""
        began_s = self._loop.time()
        await wait_first((*self._pending.futures, self._stopped))
        self._started_s += self._loop.time() - began_s
        if self._stopped.done():
            raise RunEnded

    def is_last_open(self, operation_id: str) -> bool:
        """Whether all other calls of the run have ended."""
        return self._pending.is_last_open(operation_id)

    async def wait_for_model(self, step: AwaitModel) -> None:
        """Wait until the model may be asked again, if that is soon."""
        if step.delay_s is None or step.delay_s > PARK_FOR_MODEL_AFTER_S:
            raise ParkRequested(step.code, (step.operation_id,), model=step)
        ends_s = self._loop.time() + step.delay_s
        while (left_s := ends_s - self._loop.time()) > CLOCK_STEP_S:
            await self._wait(left_s)

    async def _wait_answered(
        self, numbers: Sequence[int], began_s: float, timer_ms: int | None, *, whole: bool
    ) -> list[int]:
        """Wait until all calls have ended or the timer fires. If calls of several steps are open,
        the first outcome ends the wait."""
        open_calls, settled = self._pending, 0
        limit_s, timer_s = self._left_ms / 1000, None if timer_ms is None else timer_ms / 1000
        while True:
            open_calls.collect()
            answered = open_calls.answered(numbers)
            splits = self._has_mixed_steps or open_calls.any_by_event(numbers)
            if len(answered) == len(numbers) or (splits and answered and not whole):
                if len(numbers) - len(answered) < MANY_CALLS or len(answered) == settled:
                    return answered
                settled = len(answered)
                await self._wait(SETTLE_S)
                continue
            park_s = self._park_after_s(timer_s, limit_s)
            waited_s = self._loop.time() - began_s
            if park_s is not None and park_s <= waited_s + CLOCK_STEP_S:
                codes = open_calls.waiting_codes(numbers)
                raise ParkRequested(
                    _park_code(codes),
                    tuple(codes),
                    split=self._has_mixed_steps,
                    is_repeatable=not self._has_partial_steps and timer_ms is None,
                )
            if timer_s is not None and timer_s <= waited_s:
                return answered
            ends_s = min((end for end in (timer_s, park_s) if end is not None), default=None)
            await self._wait(None if ends_s is None else ends_s - waited_s)

    def _park_after_s(self, timer_s: float | None, limit_s: float) -> float | None:
        """How long the run waits before it parks; ``None`` while a call of it runs, or while its
        program has a timer of its own that fires within the run's limit."""
        if self._pending.any_running:
            return None
        if not self._pending.may_end_soon:
            return 0.0
        if timer_s is not None and timer_s < limit_s:
            return None
        return min(PARK_AFTER_S, limit_s / 2)

    async def _wait(self, timeout_s: float | None) -> None:
        """Wait for the progress of a call, at most so long and for the run's remaining time, and
        until the run is stopped. While only events are awaited, the run's time stops, as it does
        when it is parked."""
        began_s, is_idle = self._loop.time(), not self._pending.any_running
        limit_s = (self._left_ms + SLACK_MS) / 1000
        is_last = timeout_s is None or timeout_s >= limit_s
        waits: tuple[asyncio.Future[Any], ...] = (*self._pending.futures, self._stopped)
        is_any_done = await wait_first(waits, limit_s if is_last else timeout_s)
        if is_idle:
            self._started_s += self._loop.time() - began_s
        if self._stopped.done():
            raise RunEnded
        if is_last and not is_any_done:
            raise TimeoutError

    @property
    def _left_ms(self) -> float:
        return max(0.0, self._limit_ms - (self._loop.time() - self._started_s) * 1000)


def _park_code(codes: Mapping[str, str]) -> str:
    """The code of a run that parks for these: what needs nothing but time names it last."""
    others = (code for code in codes.values() if code not in _SOON)
    soon = (code for code in codes.values() if code != WAITING_FOR_TIMER)
    return next(others, next(soon, WAITING_FOR_TIMER))


def _passed_ms(waited_s: float, timer_ms: int | None, *, some: bool) -> int:
    """An outcome implies that the timer has not fired."""
    passed_ms = ceil(waited_s * 1000)
    if some and timer_ms is not None:
        passed_ms = min(passed_ms, timer_ms - 1)
    return max(1, passed_ms)


# --- synchronous calls ----------------------------------------------------------------------------


class SyncCalls:
    """The synchronous calls of one run's program, which are made during a step; on the loop. If the
    run's time ends meanwhile, the sandbox ends the run and cancels the task of the call."""

    def __init__(
        self, answers: Callable[[CallsRequested], Awaitable[dict[int, ToolResult]]]
    ) -> None:
        """``answers`` requests calls and waits for them."""
        self._answers = answers
        self._tasks: set[asyncio.Task[Any]] = set()
        self.error: Exception | None = None
        """Why a call failed."""

    async def make(self, call: ProgramCall) -> ToolResult | None:
        """Make a call; ``None``: the step must end."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return (await self._answers(CallsRequested((call,))))[call.id]
        except TimeoutError:
            return await asyncio.Future()
        except (RunEnded, ParkRequested, CodedError) as why:
            self.error = why
            return None
        finally:
            self._tasks.discard(task)

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
