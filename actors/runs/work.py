"""One run on its way: between its driver, which wants calls, and its actors, which keep the record.

What the driver wants is put on record before it is asked for, and what it is told was on record
before. Taken up again, on any node, the driver is told the same once more and asks the same, which
is then not put on record twice. Whoever ends the run from outside is noticed at the next record,
or, if it is urgent, at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from math import ceil
from typing import Any, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from rookery.actors.kernel.inside import Ask
from rookery.actors.runs.driver import Driver, Ends, Given, Moves, Step, Wants
from rookery.actors.runs.history import Reader
from rookery.actors.runs.open_calls import Board, OpenCalls
from rookery.actors.sandbox.contract import Answer, Call, Tool
from rookery.actors.sandbox.recorded import Batch
from rookery.actors.turns.driving import calls_wanted, cancelled_result, ended_at_rest, ending
from rookery.bus.ports import Blobs
from rookery.schemas.calls import (
    Arguments,
    AskedCall,
    CallsQuery,
    CallsView,
    DrivingView,
    Move,
    Offer,
    RunParked,
    StepTaken,
)
from rookery.schemas.codec import encode_json
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.ids import derived_uuid7
from rookery.schemas.run import ErrorObject, Metrics, RunResult, RunStatus

__all__ = ["Board", "Memory", "Work", "Works"]

INLINE_BYTES_MAX = 64 << 10
BATCH_BYTES_MAX = 128 << 10
"""Of arguments in one step: two families put them into facts, and these have their limit."""
BATCH_CALLS_MAX = 500
WAKES_MAX = 1_000
"""So often a program may see that time has passed before that stands."""
SLACK_MS = 20
"""A run whose time is up is ended by its sandbox; this is for the case that it is at rest."""


class Memory(Protocol):
    """What the drivers of a node remember of sessions from one run to the next."""

    async def ready(
        self, session: str, view: DrivingView, tools: Sequence[Tool]
    ) -> Sequence[Batch]:
        """The session stands where the run begins; what the run was told before."""

    async def require(self, offer: Offer) -> None:
        """``Refused`` if there is nothing here that could go on with such a run."""

    async def wake(self, session: str, view: DrivingView, tools: Sequence[Tool]) -> None:
        """The session stands where the run was parked."""

    async def park(self, session: str, offer: Offer) -> tuple[str, str]:
        """Keep the session with its waiting run, and let it go; the snapshot's id and blob."""

    async def keep(self, session: str, offer: Offer) -> tuple[str, str, int]:
        """Keep the session as it stands; the snapshot's id, blob and size."""

    async def ended(
        self, session: str, view: DrivingView, result: RunResult, *, kept: bool
    ) -> None:
        """The run is over, and so it stands."""

    async def forget(self, session: str) -> None:
        """Whatever is remembered of the session is not to be trusted any more."""


class Works(Protocol):
    """What every run on its way needs of its node."""

    ask: Ask
    board: Board
    blobs: Blobs
    reader: Reader
    memory: Memory


class _Over(Exception):
    """The run has ended on record, or is to end now."""


class _Parks(Exception):
    """The run waits for something that may take long."""

    def __init__(self, code: str, operations: tuple[str, ...]) -> None:
        super().__init__(code)
        self.code, self.operations = code, operations


class Work:
    """Lives on the bus's loop."""

    def __init__(self, works: Works, driver: Driver, session: str, view: DrivingView) -> None:
        self._works, self._driver, self._session, self._view = works, driver, session, view
        self._steps = 0
        """How many steps the driver has taken, those of before included, but for its last."""
        self._open = OpenCalls(works.board)
        self._split = False
        """Whether calls of several steps may be open."""
        self._again = False
        """Whether calls are open that the driver has waited for before."""
        self._answered = not view.calls
        self._given: tuple[str, ...] | UnsetType = UNSET
        """What the driver was given since the last step, if that was not all it waited for."""
        self._passed_ms: list[int] = []
        """How far its clock went on since then."""
        self._why: Exception | None = None
        """Why a synchronous call could not be made."""
        self._stopping = asyncio.Event()
        self._making: set[asyncio.Task[Any]] = set()
        self._began_s = 0.0

    # --- from the first step to the last ----------------------------------------------------------

    async def go(self) -> None:
        """Until the run has ended or is parked."""
        view, goes_on = self._view, False
        assert view.offer is not UNSET
        try:
            step = await self._begin(view)
            while not isinstance(step, Ends):
                step = await self._next(step)
        except _Over:
            await self._give_up()
            return
        except _Parks as parks:
            goes_on = await self._park(parks)
            return
        finally:
            if not goes_on:  # What it waits for may have begun while it was being parked.
                self._works.board.cancel_run(view.run_id)
            for making in self._making:
                making.cancel()
        await self._end(step.result, kept=step.kept, moves=step.moves)

    async def stop(self) -> None:
        """Somebody wants the run to end now."""
        self._stopping.set()
        await self._driver.stop()

    async def _begin(self, view: DrivingView) -> Step:
        works, session = self._works, self._session
        assert view.offer is not UNSET
        tools = await works.reader.tools(view.offer)
        request = await works.reader.request(view.request, view.request_blob)
        given = Given(view.run_id, session, request, view.offer, tools, view.started_at_ms, ())
        if view.snapshot_blob and view.calls:
            await works.memory.wake(session, view, tools)
            self._steps, self._began_s = view.steps, _now_s()
            await self._take_up((*view.calls, *view.beside))
            timer_ms = None if view.timer_ms is UNSET else view.timer_ms
            answers, advance_ms = await self._come([c.number for c in view.calls], timer_ms)
            return await self._driver.wake(given, answers, self._make, advance_ms)
        known = await works.memory.ready(session, view, tools)
        before = 0 if view.forked is UNSET else view.forked.batches
        self._steps, self._began_s = len(known) - before, _now_s()
        self._answered = self._steps == view.steps
        self._split = self._again = any(not batch.whole for batch in known)
        await self._take_up(view.beside)
        return await self._driver.begin(given._replace(known=known), self._make)

    async def _next(self, step: Wants | Moves) -> Step:
        if self._why is not None:
            raise self._why
        if isinstance(step, Moves):
            await self._take(step.moves)
            return await self._driver.go_on({})
        try:
            answers, advance_ms = await self._answers(step)
        except TimeoutError:
            late = await self._driver.go_on({}, self._limit_ms + 1)
            return late if isinstance(late, Ends) else await self._out_of_time()
        return await self._driver.go_on(answers, advance_ms)

    async def _out_of_time(self) -> Ends:
        """The driver does not see it."""
        stopped = await self._driver.stop() or RunResult()
        text = f"the run took longer than {self._limit_ms} ms"
        error = ErrorObject(code="TIMEOUT_WALL", message=text)
        result = RunResult.failed(RunStatus.TIMEOUT, error, stopped.stdout, stopped.metrics)
        return Ends(result, kept=False)

    async def _make(self, call: Call) -> Answer | None:
        """A synchronous call, in the middle of a step. If the run's time is up meanwhile, the
        sandbox ends the run, and with it whoever waits here."""
        task = asyncio.current_task()
        assert task is not None
        self._making.add(task)
        try:
            answers, _ = await self._answers(Wants((call,)))
            return answers[call.id]
        except TimeoutError:
            return await asyncio.Future()
        except (_Over, _Parks, CodedError) as why:
            self._why = why
            return None
        finally:
            self._making.discard(task)

    # --- calls ------------------------------------------------------------------------------------

    async def _answers(self, wants: Wants) -> tuple[dict[int, Answer], int]:
        """Put what is wanted on record, unless it is, and wait for what comes of it: the answers,
        and how far the driver's clock goes on with them. Calls that are wanted no more are given
        up. That only time has passed need not stand before something follows from it."""
        if len(wants.calls) > BATCH_CALLS_MAX:
            text = (
                f"{len(wants.calls)} calls are awaited together, at most {BATCH_CALLS_MAX} can be"
            )
            raise Refused("EXTERNAL_CALLS_EXCEEDED", text)
        gone = self._gone(wants)
        new = [call for call in wants.calls if call.id not in self._open]
        if new or gone or self._given != () or len(self._passed_ms) >= WAKES_MAX:
            await self._want(wants, new)
        for call in gone:
            self._works.board.give_up(self._view.run_id, call.operation_id)
        try:
            return await self._come([call.id for call in wants.calls], wants.timer_ms)
        except _Parks:
            if self._given == ():
                await self._want(wants, [])
            raise

    def _gone(self, wants: Wants) -> list[AskedCall]:
        """A synchronous call says nothing of those that are awaited."""
        if not all(call.awaited for call in wants.calls):
            return []
        return self._open.give_up({call.id for call in wants.calls})

    async def _want(self, wants: Wants, new: Sequence[Call]) -> None:
        room = min(INLINE_BYTES_MAX, BATCH_BYTES_MAX // max(1, len(new)))
        calls = tuple([await self._asked(call, room) for call in new])
        self._split |= len(self._open) > 0 and any(call.awaited for call in calls)
        self._open.add(calls)
        barrier = [self._operation(call.id) for call in wants.calls]
        recovering = self._steps < self._view.steps
        moves = (*wants.moves, *calls_wanted(calls, barrier, self._open.operations))
        await self._take(moves, calls, wants.timer_ms)
        self._answered = False
        if recovering:
            await self._recall()

    async def _take_up(self, calls: Sequence[AskedCall]) -> None:
        """They are under way since before."""
        if calls:
            self._open.add(calls)
            await self._recall()

    async def _asked(self, call: Call, room: int) -> AskedCall:
        arguments = Arguments(args=call.args, kwargs=call.kwargs)
        asked = AskedCall(
            operation_id=self._operation(call.id),
            number=call.id,
            name=call.name,
            digest=call.digest,
            awaited=call.awaited,
            arguments=arguments,
        )
        text = encode_json(arguments)
        if len(text) <= room:
            return asked
        blob = await self._works.blobs.put(text)
        return msgspec.structs.replace(asked, arguments=UNSET, arguments_blob=blob)

    def _operation(self, number: int) -> str:
        """The same call has the same id, whoever makes it and how often."""
        view = self._view
        return derived_uuid7(view.started_at_ms, self._session, view.run_id, str(number))

    async def _come(
        self, numbers: Sequence[int], timer_ms: int | None
    ) -> tuple[dict[int, Answer], int]:
        """What came of the calls, and how far the driver's clock goes on with that. Calls of one
        step are answered together, unless its time comes first; once there are calls of several
        steps, whatever comes is told at once."""
        began_s, open_calls = _now_s(), self._open
        while True:
            open_calls.listen()
            answered = open_calls.answered(numbers)
            if len(answered) == len(numbers) or (self._split and answered):
                break
            if not open_calls.going:
                waiting = open_calls.waiting(numbers)
                raise _Parks(next(iter(waiting.values())), tuple(waiting))
            left_s = None if timer_ms is None else began_s + timer_ms / 1000 - _now_s()
            if left_s is not None and left_s <= 0:
                break
            told = asyncio.wait(
                open_calls.expected, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            await self._wait(told)
        passed_ms = 0
        if open_calls.are_awaited(numbers) and (timer_ms is not None or self._again):
            passed_ms = _passed_ms(began_s, timer_ms, some=bool(answered))
            self._passed_ms.append(passed_ms)
        whole = len(answered) == len(numbers)
        self._given = UNSET if whole else tuple(map(self._operation, answered))
        self._answered = True
        answers = {
            number: await self._works.reader.answer(outcome)
            for number, outcome in open_calls.take(answered)
        }
        self._again = len(open_calls) > 0
        self._split &= self._again
        return answers, passed_ms

    async def _recall(self) -> None:
        """Of what was asked before, something may have come already."""
        query, operations = CallsQuery(run_id=self._view.run_id), set(self._open.operations)
        for known in (await self._works.ask("tool", self._session, query, CallsView)).calls:
            if known.operation_id in operations and (known.outcome is not UNSET or known.waits_for):
                self._works.board.tell(known)

    async def _wait(self, work: Any) -> Any:
        """For this, but no longer than the run may take, nor than anybody wants it to go on."""
        waiting = asyncio.ensure_future(work)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            async with asyncio.timeout((self._left_ms + SLACK_MS) / 1000):
                await asyncio.wait((waiting, stopping), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not waiting.done():
                waiting.cancel()
        if self._stopping.is_set():
            raise _Over
        return waiting.result()

    @property
    def _offer(self) -> Offer:
        offer = self._view.offer
        assert offer is not UNSET
        return offer

    @property
    def _limit_ms(self) -> int:
        return self._offer.limits.wall_ms

    @property
    def _left_ms(self) -> float:
        return max(0.0, self._limit_ms - (_now_s() - self._began_s) * 1000)

    @property
    def _following(self) -> int:
        """The number of the step that ends the run, wherever its driver stands."""
        return max(self._steps, self._view.steps) + 1

    # --- on record --------------------------------------------------------------------------------

    async def _take(
        self,
        moves: tuple[Move, ...],
        calls: tuple[AskedCall, ...] = (),
        timer_ms: int | None = None,
    ) -> None:
        """The next step stands, if it did not already, unless the run has ended meanwhile."""
        self._steps += 1
        given, passed_ms = self._given, tuple(self._passed_ms)
        self._given, self._passed_ms = UNSET, []
        if self._steps <= self._view.steps:
            return
        step = StepTaken(
            run_id=self._view.run_id,
            number=self._steps,
            given=given,
            passed_ms=passed_ms,
            moves=moves,
            calls=calls,
            timer_ms=UNSET if timer_ms is None else timer_ms,
        )
        view = await self._works.ask("turn", self._session, step, DrivingView)
        if view.cancelling or view.ended:
            raise _Over

    async def _end(self, result: RunResult, *, kept: bool, moves: Any = None) -> None:
        """The run's last step. A driver that was stopped has come to nothing that counts."""
        works, run_id = self._works, self._view.run_id
        if kept and result.snapshot_id is not None:
            snapshot_id, _, _ = await works.memory.keep(self._session, self._offer)
            result = msgspec.structs.replace(result, snapshot_id=snapshot_id)
        step = StepTaken(
            run_id=run_id,
            number=self._following,
            answered=self._answered,
            given=self._given,
            passed_ms=tuple(self._passed_ms),
            moves=ending(run_id, result) if moves is None else moves,
            result=result,
            kept=kept,
        )
        text = encode_json(result)
        if len(text) > INLINE_BYTES_MAX:
            told = msgspec.structs.replace(
                result, result=None, stdout="", stderr="", external_calls=(), diagnostics=()
            )
            blob = await works.blobs.put(text)
            step = msgspec.structs.replace(step, result=told, result_blob=blob)
        said = await works.ask("turn", self._session, step, DrivingView)
        stands = kept and said.ended in ("Completed", "Failed")
        if kept and not stands:
            await works.memory.forget(self._session)
        else:
            await works.memory.ended(self._session, self._view, result, kept=stands)

    async def _give_up(self) -> None:
        """The run has ended by itself, or is to; its driver goes no further."""
        result = await self._driver.stop()
        await self._works.memory.forget(self._session)
        step = StepTaken(
            run_id=self._view.run_id,
            number=self._following,
            answered=False,
            moves=ending(self._view.run_id, cancelled_result(UNSET)),
            result=cancelled_result(UNSET if result is None else result),
        )
        await self._works.ask("turn", self._session, step, DrivingView)

    async def _park(self, parks: _Parks) -> bool:
        """Whether the run is to go on when what it waits for has come."""
        snapshot_id, blob = await self._works.memory.park(self._session, self._offer)
        parked = RunParked(
            run_id=self._view.run_id,
            code=parks.code,
            snapshot_id=snapshot_id,
            snapshot_blob=blob,
            waits_for=parks.operations,
        )
        view = await self._works.ask("turn", self._session, parked, DrivingView)
        if view.cancelling:
            await self._works.ask("turn", self._session, ended_at_rest(view), DrivingView)
        return not view.cancelling and not view.ended

    async def drop(self) -> None:
        """The run is another node's, or begins anew: nothing here counts any more."""
        self._stopping.set()
        await self._works.memory.forget(self._session)

    async def fail(self, why: CodedError) -> None:
        """The run cannot be driven: it ends without having been."""
        error = ErrorObject(code=why.code, message=why.message, hint=why.hint or None)
        await self._works.memory.forget(self._session)
        failed = RunResult.failed(RunStatus.VALIDATION_ERROR, error, "", Metrics())
        await self._end(failed, kept=False)


def _passed_ms(began_s: float, timer_ms: int | None, *, some: bool) -> int:
    """If there are answers, the program's time has not come."""
    passed_ms = ceil((_now_s() - began_s) * 1000)
    if some and timer_ms is not None:
        passed_ms = min(passed_ms, timer_ms - 1)
    return max(1, passed_ms)


def _now_s() -> float:
    loop = asyncio.get_running_loop()
    return loop.time()
