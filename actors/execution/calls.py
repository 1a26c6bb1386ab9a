"""What comes of the calls a run wants, and when its driver is told.

What is wanted is put on record before anybody waits for it. Then answers come, or the time of one
of the program's timers, or the run's own; somebody wants the run to end; or all that is left waits
for somebody and may take long. Which calls are under way is ``open_calls``' to know, what goes on
record is ``on_record``'s. It makes no call, and takes no step of the driver's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from math import ceil
from typing import Any

from msgspec import UNSET

from rookery.actors.execution.driver import Wants
from rookery.actors.execution.history import Reader
from rookery.actors.execution.pending_calls import Board, OpenCalls
from rookery.actors.execution.step_recorder import RunOver, RunRecord
from rookery.actors.sandbox.contract import Answer, Call
from rookery.actors.turns.run_state import calls_wanted
from rookery.schemas.calls import AskedCall
from rookery.schemas.errors import Refused

__all__ = ["Calling", "RunParks"]

BATCH_CALLS_MAX = 500
SLACK_MS = 20
"""A run whose time is up is ended by its sandbox; this is for the case that it is at rest."""


class RunParks(Exception):
    """The run waits for something that may take long."""

    def __init__(self, code: str, operations: tuple[str, ...], *, split: bool) -> None:
        super().__init__(code)
        self.code, self.operations, self.split = code, operations, split


class Calling:
    """One run's. Used on the loop. Whoever waits hears of the run's end as ``RunOver``, of its time
    being up as ``TimeoutError``, and that it is to be parked as ``RunParks``."""

    def __init__(self, record: RunRecord, board: Board, reader: Reader, limit_ms: int) -> None:
        self._record, self._board, self._reader = record, board, reader
        self._limit_ms, self._began_s = limit_ms, 0.0
        self._open = OpenCalls(board)
        self._split = False
        """Whether calls of several steps may be open."""
        self._again = False
        """Whether calls are open that the driver has waited for before."""
        self._stopping = asyncio.Event()

    async def take_up(self, calls: Sequence[AskedCall], *, split: bool = False) -> None:
        """The run's time begins. These calls are under way since before; ``split``: the driver was
        not always told of all it waited for."""
        self._began_s = _now_s()
        self._split = self._again = split
        if calls:
            self._open.add(calls)
            await self._recall()

    def stop(self) -> None:
        """Nobody is to wait any more."""
        self._stopping.set()

    # --- what is wanted ---------------------------------------------------------------------------

    async def answers(self, wants: Wants) -> tuple[dict[int, Answer], int]:
        """Put what is wanted on record, unless it is, and wait for what comes of it: the answers,
        and how far the driver's clock goes on with them. Calls that are wanted no more are given
        up."""
        if len(wants.calls) > BATCH_CALLS_MAX:
            text = (
                f"{len(wants.calls)} calls are awaited together, at most {BATCH_CALLS_MAX} can be"
            )
            raise Refused("EXTERNAL_CALLS_EXCEEDED", text)
        gone = self._gone(wants)
        new = [call for call in wants.calls if call.id not in self._open]
        stands = bool(new or gone) or not self._record.only_time_passed
        if stands:
            await self._want(wants, new)
        for call in gone:
            self._board.give_up(self._record.run_id, call.operation_id)
        try:
            return await self.come([call.id for call in wants.calls], wants.timer_ms)
        except RunParks:
            if not stands:
                await self._want(wants, [])
            raise

    def _gone(self, wants: Wants) -> list[AskedCall]:
        """A synchronous call says nothing of those that are awaited."""
        if not all(call.awaited for call in wants.calls):
            return []
        return self._open.give_up({call.id for call in wants.calls})

    async def _want(self, wants: Wants, new: Sequence[Call]) -> None:
        calls = await self._record.asked(new)
        self._split |= len(self._open) > 0 and any(call.awaited for call in calls)
        self._open.add(calls)
        barrier = [self._record.operation_id(call.id) for call in wants.calls]
        moves = (*wants.moves, *calls_wanted(calls, barrier, self._open.operations))
        recovering = self._record.recovering
        await self._record.want(moves, calls, wants.timer_ms)
        if recovering:
            await self._recall()

    async def _recall(self) -> None:
        """Of what was asked before, something may have come already."""
        operations = set(self._open.operations)
        for known in await self._record.known_calls():
            if known.operation_id in operations and (known.outcome is not UNSET or known.waits_for):
                self._board.tell(known)

    # --- what comes of it -------------------------------------------------------------------------

    async def come(
        self, numbers: Sequence[int], timer_ms: int | None
    ) -> tuple[dict[int, Answer], int]:
        """What came of the calls, and how far the driver's clock goes on with that."""
        began_s = _now_s()
        answered = await self._answered(numbers, began_s, timer_ms)
        passed_ms = 0
        if self._open.are_awaited(numbers) and (timer_ms is not None or self._again):
            passed_ms = _passed_ms(began_s, timer_ms, some=bool(answered))
        whole = len(answered) == len(numbers)
        given = UNSET if whole else tuple(map(self._record.operation_id, answered))
        self._record.told(given, passed_ms)
        answers = {
            number: await self._reader.answer(outcome)
            for number, outcome in self._open.take(answered)
        }
        self._again = len(self._open) > 0
        self._split &= self._again
        return answers, passed_ms

    async def _answered(
        self, numbers: Sequence[int], began_s: float, timer_ms: int | None
    ) -> list[int]:
        """Calls of one step are answered together, unless the driver's time comes first; once there
        are calls of several steps, whatever comes is told at once."""
        open_calls = self._open
        while True:
            open_calls.listen()
            answered = open_calls.answered(numbers)
            if len(answered) == len(numbers) or (self._split and answered):
                return answered
            if not open_calls.going:
                waiting = open_calls.waiting(numbers)
                code = next(iter(waiting.values()))
                raise RunParks(code, tuple(waiting), split=self._split)
            left_s = None if timer_ms is None else began_s + timer_ms / 1000 - _now_s()
            if left_s is not None and left_s <= 0:
                return answered
            told = asyncio.wait(
                open_calls.expected, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
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
            raise RunOver
        waiting.result()

    @property
    def _left_ms(self) -> float:
        return max(0.0, self._limit_ms - (_now_s() - self._began_s) * 1000)


def _passed_ms(began_s: float, timer_ms: int | None, *, some: bool) -> int:
    """If there are answers, the program's time has not come."""
    passed_ms = ceil((_now_s() - began_s) * 1000)
    if some and timer_ms is not None:
        passed_ms = min(passed_ms, timer_ms - 1)
    return max(1, passed_ms)


def _now_s() -> float:
    loop = asyncio.get_running_loop()
    return loop.time()
