"""One run from its first step to its last: between its driver, which wants calls, and its actors,
which keep the record.

What the driver wants is put on record before it is asked for, and what it is told was on record
before. Taken up again, on any node, the driver is told the same once more and asks the same, which
is then not put on record twice. Whoever ends the run from outside is noticed at the next record,
or, if it is urgent, at once. What comes of calls is ``calling``'s, what stands ``on_record``'s;
what the node remembers of the session is told here how the run went.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from msgspec import UNSET

from rookery.actors.execution.calls import Calling, RunParks
from rookery.actors.execution.driver import Driver, Ends, Given, Moves, Step, Wants
from rookery.actors.execution.history import Reader
from rookery.actors.execution.pending_calls import Board
from rookery.actors.execution.step_recorder import RunOver, RunRecord
from rookery.actors.kernel.local_ask import Ask
from rookery.actors.sandbox.contract import Answer, Call, Tool
from rookery.actors.sandbox.sessions.recorded_runs import Batch
from rookery.bus.ports import Blobs
from rookery.schemas.calls import DrivingView, Offer
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.run import (
    Diagnostic,
    ErrorObject,
    Metrics,
    RunResult,
    RunStatus,
    Severity,
)

__all__ = ["Memory", "Work", "Works"]


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


class Work:
    """Lives on the bus's loop."""

    def __init__(self, works: Works, driver: Driver, session: str, view: DrivingView) -> None:
        assert view.offer is not UNSET
        self._works, self._driver, self._session, self._view = works, driver, session, view
        self._offer, self._limit_ms = view.offer, view.offer.limits.wall_ms
        self._record = RunRecord(works.ask, works.blobs, session, view)
        self._calling = Calling(self._record, works.board, works.reader, self._limit_ms)
        self._why: Exception | None = None
        """Why a synchronous call could not be made."""
        self._making: set[asyncio.Task[Any]] = set()

    async def go(self) -> None:
        """Until the run has ended or is parked."""
        goes_on = False
        try:
            step = await self._begin()
            while not isinstance(step, Ends):
                step = await self._next(step)
        except RunOver:
            await self._give_up()
            return
        except RunParks as parks:
            goes_on = await self._park(parks)
            return
        finally:
            if not goes_on:  # What it waits for may have begun while it was being parked.
                self._works.board.cancel_run(self._view.run_id)
            for making in self._making:
                making.cancel()
        await self._end(step)

    async def stop(self) -> None:
        """Somebody wants the run to end now."""
        self._calling.stop()
        await self._driver.stop()

    async def drop(self) -> None:
        """The run is another node's, or begins anew: nothing here counts any more."""
        self._calling.stop()
        await self._works.memory.forget(self._session)

    async def fail(self, why: CodedError) -> None:
        """The run cannot be driven: it ends without having been."""
        error = ErrorObject(code=why.code, message=why.message, hint=why.hint or None)
        await self._works.memory.forget(self._session)
        failed = RunResult.failed(RunStatus.VALIDATION_ERROR, error, "", Metrics())
        await self._end(Ends(failed, kept=False))

    # --- steps ------------------------------------------------------------------------------------

    async def _begin(self) -> Step:
        works, session, view = self._works, self._session, self._view
        tools = await works.reader.tools(self._offer)
        request = await works.reader.request(view.request, view.request_blob)
        given = Given(view.run_id, session, request, self._offer, tools, view.started_at_ms, ())
        if view.snapshot_blob and view.calls:
            await works.memory.wake(session, view, tools)
            self._record.take_up(view.steps, answered=False)
            await self._calling.take_up((*view.calls, *view.beside), split=view.split)
            timer_ms = None if view.timer_ms is UNSET else view.timer_ms
            numbers = [call.number for call in view.calls]
            answers, advance_ms = await self._calling.come(numbers, timer_ms)
            return await self._driver.wake(given, answers, self._make, advance_ms)
        known = await works.memory.ready(session, view, tools)
        steps = len(known) - (0 if view.forked is UNSET else view.forked.batches)
        self._record.take_up(steps, answered=steps == view.steps)
        await self._calling.take_up(view.beside, split=any(not batch.whole for batch in known))
        return await self._driver.begin(given._replace(known=known), self._make)

    async def _next(self, step: Wants | Moves) -> Step:
        if self._why is not None:
            raise self._why
        if isinstance(step, Moves):
            await self._record.take(step.moves)
            return await self._driver.go_on({})
        try:
            answers, advance_ms = await self._calling.answers(step)
        except TimeoutError:
            late = await self._driver.go_on({}, self._limit_ms + 1)
            return late if isinstance(late, Ends) else await self._out_of_time()
        return await self._driver.go_on(answers, advance_ms)

    async def _make(self, call: Call) -> Answer | None:
        """A synchronous call, in the middle of a step. If the run's time is up meanwhile, the
        sandbox ends the run, and with it whoever waits here."""
        task = asyncio.current_task()
        assert task is not None
        self._making.add(task)
        try:
            answers, _ = await self._calling.answers(Wants((call,)))
            return answers[call.id]
        except TimeoutError:
            return await asyncio.Future()
        except (RunOver, RunParks, CodedError) as why:
            self._why = why
            return None
        finally:
            self._making.discard(task)

    async def _out_of_time(self) -> Ends:
        """The driver does not see it."""
        stopped = await self._driver.stop() or RunResult()
        text = f"the run took longer than {self._limit_ms} ms"
        error = ErrorObject(code="TIMEOUT_WALL", message=text)
        result = RunResult.failed(RunStatus.TIMEOUT, error, stopped.stdout, stopped.metrics)
        return Ends(result, kept=False)

    # --- the last of them, and what the node remembers --------------------------------------------

    async def _end(self, last: Ends) -> None:
        """What the run did to its session stands if the record says so."""
        memory, session, result, kept = self._works.memory, self._session, last.result, last.kept
        if kept and result.snapshot_id is not None:
            result = await self._snapshotted(result)
        said = await self._record.end(result, kept=kept, moves=last.moves)
        stands = kept and said.ended in ("Completed", "Failed")
        if kept and not stands:
            await memory.forget(session)
        else:
            await memory.ended(session, self._view, result, kept=stands)

    async def _snapshotted(self, result: RunResult) -> RunResult:
        """A run that has come to its end has done what it did, also if its session is too large
        to be kept."""
        try:
            snapshot_id, _, _ = await self._works.memory.keep(self._session, self._offer)
        except Refused as refusal:
            said = Diagnostic(
                severity=Severity.WARNING,
                code=refusal.code,
                message=refusal.message,
                hint=refusal.hint or None,
            )
            diagnostics = (*result.diagnostics, said)
            return msgspec.structs.replace(result, snapshot_id=None, diagnostics=diagnostics)
        return msgspec.structs.replace(result, snapshot_id=snapshot_id)

    async def _give_up(self) -> None:
        """The run has ended by itself, or is to; its driver goes no further."""
        result = await self._driver.stop()
        await self._works.memory.forget(self._session)
        await self._record.give_up(result)

    async def _park(self, parks: RunParks) -> bool:
        """Whether the run is to go on when what it waits for has come."""
        snapshot = await self._works.memory.park(self._session, self._offer)
        return await self._record.park(parks.code, parks.operations, snapshot, split=parks.split)
