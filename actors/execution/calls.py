"""What comes of the calls a run wants, and when its driver is told.

What is wanted is put on record before anybody waits for it. Then answers come, or the time of one
of the program's timers, or the run's own; somebody wants the run to end; or all that is left waits
for somebody and may take long. Which calls are under way is ``open_calls``' to know, what goes on
record is ``on_record``'s. It makes no call, and takes no step of the driver's.

A run's calls that are under way: which there are, what they wait for, and what came of them.

In memory, for as long as somebody drives the run. It makes no call and ends none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Coroutine, Iterable, Sequence
from math import ceil
from typing import Any, Protocol

from msgspec import UNSET

from rookery.actors.execution.driver import CallsRequested
from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.execution.step_recorder import RunEnded, StepRecorder
from rookery.actors.messages import CallProgress
from rookery.actors.sandbox.contract import ProgramCall, ToolResult
from rookery.actors.turns.run_state import request_calls
from rookery.schemas.calls import CallOutcome, RequestedCall
from rookery.schemas.errors import Refused

__all__ = ["CallCoordinator", "CallNotifierPort", "ParkRequested", "PendingCalls"]


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


BATCH_CALLS_MAX = 500
SLACK_MS = 20
"""A run whose time is up is ended by its sandbox; this is for the case that it is at rest."""


class ParkRequested(Exception):
    """The run waits for something that may take long."""

    def __init__(self, code: str, operations: tuple[str, ...], *, split: bool) -> None:
        super().__init__(code)
        self.code, self.operations, self.split = code, operations, split


class CallCoordinator:
    """One run's. Used on the loop. Whoever waits hears of the run's end as ``RunEnded``, of its
    time being up as ``TimeoutError``, and that it is to be parked as ``ParkRequested``."""

    def __init__(
        self, record: StepRecorder, board: CallNotifierPort, reader: RunHistoryReader, limit_ms: int
    ) -> None:
        self._recorder, self._notifier, self._reader = record, board, reader
        self._limit_ms, self._started_s = limit_ms, 0.0
        self._pending = PendingCalls(board)
        self._has_mixed_steps = False
        """Whether calls of several steps may be open."""
        self._has_resumed_calls = False
        """Whether calls are open that the driver has waited for before."""
        self._stopping = asyncio.Event()

    async def resume(self, calls: Sequence[RequestedCall], *, split: bool = False) -> None:
        """The run's time begins. These calls are under way since before; ``split``: the driver was
        not always told of all it waited for."""
        self._started_s = _now_s()
        self._has_mixed_steps = self._has_resumed_calls = split
        if calls:
            self._pending.add(calls)
            await self._reload_outcomes()

    def stop(self) -> None:
        """Nobody is to wait any more."""
        self._stopping.set()

    # --- what is wanted ---------------------------------------------------------------------------

    async def request_and_wait(self, wants: CallsRequested) -> tuple[dict[int, ToolResult], int]:
        """Put what is wanted on record, unless it is, and wait for what comes of it: the answers,
        and how far the driver's clock goes on with them. Calls that are wanted no more are given
        up."""
        if len(wants.calls) > BATCH_CALLS_MAX:
            text = (
                f"{len(wants.calls)} calls are awaited together, at most {BATCH_CALLS_MAX} can be"
            )
            raise Refused("EXTERNAL_CALLS_EXCEEDED", text)
        gone = self._dropped(wants)
        new = [call for call in wants.calls if call.id not in self._pending]
        stands = bool(new or gone) or not self._recorder.has_only_time_passed
        if stands:
            await self._record_request(wants, new)
        for call in gone:
            self._notifier.drop(self._recorder.run_id, call.operation_id)
        try:
            return await self.wait([call.id for call in wants.calls], wants.timer_ms)
        except ParkRequested:
            if not stands:
                await self._record_request(wants, [])
            raise

    def _dropped(self, wants: CallsRequested) -> list[RequestedCall]:
        """A synchronous call says nothing of those that are awaited."""
        if not all(call.awaited for call in wants.calls):
            return []
        return self._pending.drop_except({call.id for call in wants.calls})

    async def _record_request(self, wants: CallsRequested, new: Sequence[ProgramCall]) -> None:
        calls = await self._recorder.to_requested_calls(new)
        self._has_mixed_steps |= len(self._pending) > 0 and any(call.awaited for call in calls)
        self._pending.add(calls)
        barrier = [self._recorder.operation_id(call.id) for call in wants.calls]
        moves = (*wants.inputs, *request_calls(calls, barrier, self._pending.operations))
        recovering = self._recorder.is_recovering
        await self._recorder.record_request(moves, calls, wants.timer_ms)
        if recovering:
            await self._reload_outcomes()

    async def _reload_outcomes(self) -> None:
        """Of what was asked before, something may have come already."""
        operations = set(self._pending.operations)
        for known in await self._recorder.fetch_calls():
            if known.operation_id in operations and (known.outcome is not UNSET or known.waits_for):
                self._notifier.notify(known)

    # --- what comes of it -------------------------------------------------------------------------

    async def wait(
        self, numbers: Sequence[int], timer_ms: int | None
    ) -> tuple[dict[int, ToolResult], int]:
        """What came of the calls, and how far the driver's clock goes on with that."""
        began_s = _now_s()
        answered = await self._wait_answered(numbers, began_s, timer_ms)
        passed_ms = 0
        if self._pending.are_awaited(numbers) and (timer_ms is not None or self._has_resumed_calls):
            passed_ms = _passed_ms(began_s, timer_ms, some=bool(answered))
        whole = len(answered) == len(numbers)
        given = UNSET if whole else tuple(map(self._recorder.operation_id, answered))
        self._recorder.set_answers(given, passed_ms)
        answers = {
            number: await self._reader.to_tool_result(outcome)
            for number, outcome in self._pending.pop(answered)
        }
        self._has_resumed_calls = len(self._pending) > 0
        self._has_mixed_steps &= self._has_resumed_calls
        return answers, passed_ms

    async def _wait_answered(
        self, numbers: Sequence[int], began_s: float, timer_ms: int | None
    ) -> list[int]:
        """Calls of one step are answered together, unless the driver's time comes first; once there
        are calls of several steps, whatever comes is told at once."""
        open_calls = self._pending
        while True:
            open_calls.collect()
            answered = open_calls.answered(numbers)
            if len(answered) == len(numbers) or (self._has_mixed_steps and answered):
                return answered
            if not open_calls.any_running:
                waiting = open_calls.waiting_codes(numbers)
                code = next(iter(waiting.values()))
                raise ParkRequested(code, tuple(waiting), split=self._has_mixed_steps)
            left_s = None if timer_ms is None else began_s + timer_ms / 1000 - _now_s()
            if left_s is not None and left_s <= 0:
                return answered
            told = asyncio.wait(
                open_calls.futures, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            await self._wait(told)

    async def _wait(self, told: Coroutine[Any, Any, Any]) -> None:
        """For this, but no longer than the run may take, nor than anybody wants it to go on."""
        waiting = asyncio.ensure_future(told)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            async with asyncio.timeout((self._left_ms + SLACK_MS) / 1000):
                await asyncio.wait((waiting, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not waiting.done():
                waiting.cancel()
        if self._stopping.is_set():
            raise RunEnded
        waiting.result()

    @property
    def _left_ms(self) -> float:
        return max(0.0, self._limit_ms - (_now_s() - self._started_s) * 1000)


def _passed_ms(began_s: float, timer_ms: int | None, *, some: bool) -> int:
    """If there are answers, the program's time has not come."""
    passed_ms = ceil((_now_s() - began_s) * 1000)
    if some and timer_ms is not None:
        passed_ms = min(passed_ms, timer_ms - 1)
    return max(1, passed_ms)


def _now_s() -> float:
    loop = asyncio.get_running_loop()
    return loop.time()
