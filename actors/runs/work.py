"""One run on its way: between its driver, which wants calls, and its actors, which keep the record.

What the driver wants is put on record before it is asked for, and what it is told was on record
before. Taken up again, on any node, the driver is told the same once more and asks the same, which
is then not put on record twice. Whoever ends the run from outside is noticed at the next record,
or, if it is urgent, at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from rookery.actors.kernel.inside import Ask
from rookery.actors.runs.driver import Driver, Ends, Given, Moves, Step, Wants
from rookery.actors.runs.history import Reader
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
    KnownCall,
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
SLACK_MS = 20
"""A run whose time is up is ended by its sandbox; this is for the case that it is at rest."""


class Board(Protocol):
    """Where outcomes of calls are told as soon as they stand."""

    def expect(self, operation_id: str) -> asyncio.Future[KnownCall]:
        """What comes of the call."""

    def tell(self, known: KnownCall) -> None:
        """The call has come to this."""

    def cancel_run(self, run_id: str) -> None:
        """Nobody waits for the run's calls any more."""


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

    async def park(self, session: str) -> tuple[str, str]:
        """Keep the session with its waiting run, and let it go; the snapshot's id and blob."""

    async def keep(self, session: str) -> tuple[str, str, int]:
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
        self._answered = not view.calls
        self._why: Exception | None = None
        """Why a synchronous call could not be made."""
        self._stopping = asyncio.Event()
        self._making: set[asyncio.Task[Any]] = set()
        self._began_s = 0.0

    # --- from the first step to the last ----------------------------------------------------------

    async def go(self) -> None:
        """Until the run has ended or is parked."""
        view = self._view
        assert view.offer is not UNSET
        try:
            step = await self._begin(view)
            while not isinstance(step, Ends):
                step = await self._next(step)
        except _Over:
            await self._give_up()
            return
        except _Parks as parks:
            await self._park(parks)
            return
        finally:
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
            answers = await self._outcomes(view.calls, self._expected(view.calls), recovering=True)
            self._answered = True
            return await self._driver.wake(given, answers, self._make)
        known = await works.memory.ready(session, view, tools)
        before = 0 if view.forked is UNSET else view.forked.batches
        self._steps, self._began_s = len(known) - before, _now_s()
        self._answered = self._steps == view.steps
        return await self._driver.begin(given._replace(known=known), self._make)

    async def _next(self, step: Wants | Moves) -> Step:
        if self._why is not None:
            raise self._why
        if isinstance(step, Moves):
            await self._take(step.moves)
            return await self._driver.go_on({})
        try:
            answers = await self._answers(step)
        except TimeoutError:
            late = await self._driver.go_on({}, self._limit_ms + 1)
            return late if isinstance(late, Ends) else await self._out_of_time()
        return await self._driver.go_on(answers)

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
            return (await self._answers(Wants((call,))))[call.id]
        except TimeoutError:
            return await asyncio.Future()
        except (_Over, _Parks, CodedError) as why:
            self._why = why
            return None
        finally:
            self._making.discard(task)

    # --- calls ------------------------------------------------------------------------------------

    async def _answers(self, wants: Wants) -> dict[int, Answer]:
        """Put the batch on record, unless it is, and wait for what comes of it."""
        if len(wants.calls) > BATCH_CALLS_MAX:
            text = (
                f"{len(wants.calls)} calls are awaited together, at most {BATCH_CALLS_MAX} can be"
            )
            raise Refused("EXTERNAL_CALLS_EXCEEDED", text)
        room = min(INLINE_BYTES_MAX, BATCH_BYTES_MAX // len(wants.calls))
        calls = tuple([await self._asked(call, room) for call in wants.calls])
        recovering = self._steps < self._view.steps
        expected = self._expected(calls)
        await self._take((*wants.moves, *calls_wanted(calls)), calls)
        self._answered = False
        answers = await self._outcomes(calls, expected, recovering=recovering)
        self._answered = True
        return answers

    def _expected(self, calls: Sequence[AskedCall]) -> dict[str, asyncio.Future[KnownCall]]:
        """Asked for before anything can come of them."""
        return {call.operation_id: self._works.board.expect(call.operation_id) for call in calls}

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

    async def _outcomes(
        self,
        calls: Sequence[AskedCall],
        expected: dict[str, asyncio.Future[KnownCall]],
        *,
        recovering: bool,
    ) -> dict[int, Answer]:
        """What came of the calls, or what they wait for. Nobody but the run's time, or somebody
        who wants its end, cuts this short."""
        board, waiting = self._works.board, dict[str, str]()
        left = {call.operation_id: call for call in calls}
        if recovering:
            await self._recall(left)
        answers: dict[int, Answer] = {}
        while left:
            if len(waiting) == len(left):
                raise _Parks(next(iter(waiting.values())), tuple(waiting))
            running = [expected[operation] for operation in left if operation not in waiting]
            done, _ = await self._wait(asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED))
            for known in [future.result() for future in done]:
                if known.outcome is UNSET:
                    waiting[known.operation_id] = known.waits_for
                    expected[known.operation_id] = board.expect(known.operation_id)
                else:
                    call = left.pop(known.operation_id)
                    waiting.pop(known.operation_id, None)
                    answers[call.number] = await self._works.reader.answer(known.outcome)
        return dict(sorted(answers.items()))

    async def _recall(self, operations: Container[str]) -> None:
        """Of what was asked before, something may have come already."""
        query = CallsQuery(run_id=self._view.run_id)
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
    def _limit_ms(self) -> int:
        offer = self._view.offer
        assert offer is not UNSET
        return offer.limits.wall_ms

    @property
    def _left_ms(self) -> float:
        return max(0.0, self._limit_ms - (_now_s() - self._began_s) * 1000)

    @property
    def _following(self) -> int:
        """The number of the step that ends the run, wherever its driver stands."""
        return max(self._steps, self._view.steps) + 1

    # --- on record --------------------------------------------------------------------------------

    async def _take(self, moves: tuple[Move, ...], calls: tuple[AskedCall, ...] = ()) -> None:
        """The next step stands, if it did not already, unless the run has ended meanwhile."""
        self._steps += 1
        if self._steps <= self._view.steps:
            return
        step = StepTaken(run_id=self._view.run_id, number=self._steps, moves=moves, calls=calls)
        view = await self._works.ask("turn", self._session, step, DrivingView)
        if view.cancelling or view.ended:
            raise _Over

    async def _end(self, result: RunResult, *, kept: bool, moves: Any = None) -> None:
        """The run's last step. A driver that was stopped has come to nothing that counts."""
        works, run_id = self._works, self._view.run_id
        if kept and result.snapshot_id is not None:
            snapshot_id, _, _ = await works.memory.keep(self._session)
            result = msgspec.structs.replace(result, snapshot_id=snapshot_id)
        step = StepTaken(
            run_id=run_id,
            number=self._following,
            answered=self._answered,
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

    async def _park(self, parks: _Parks) -> None:
        snapshot_id, blob = await self._works.memory.park(self._session)
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


def _now_s() -> float:
    loop = asyncio.get_running_loop()
    return loop.time()
