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

from rookery.actors.execution.calls import CallCoordinator, CallNotifierPort, ParkRequested
from rookery.actors.execution.driver import (
    CallsRequested,
    Driver,
    Finished,
    RunInput,
    Step,
    TurnInputs,
)
from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.execution.step_recorder import RunEnded, StepRecorder
from rookery.actors.kernel.local_ask import AskActor
from rookery.actors.messages import ActiveRunView
from rookery.actors.sandbox.contract import ProgramCall, Tool, ToolResult
from rookery.actors.sandbox.sessions.recorded_runs import ResultBatch
from rookery.bus.ports import Blobs
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.run import (
    Diagnostic,
    ErrorObject,
    Metrics,
    RunResult,
    RunStatus,
    Severity,
)

__all__ = ["ExecutionServices", "RunExecution", "SessionCachePort"]


class SessionCachePort(Protocol):
    """What the drivers of a node remember of sessions from one run to the next."""

    async def prepare(
        self, session: str, view: ActiveRunView, tools: Sequence[Tool]
    ) -> Sequence[ResultBatch]:
        """The session stands where the run begins; what the run was told before."""

    async def require(self, offer: RunEnvironment) -> None:
        """``Refused`` if there is nothing here that could go on with such a run."""

    async def restore_parked(
        self, session: str, view: ActiveRunView, tools: Sequence[Tool]
    ) -> None:
        """The session stands where the run was parked."""

    async def park(self, session: str, offer: RunEnvironment) -> tuple[str, str]:
        """Keep the session with its waiting run, and let it go; the snapshot's id and blob."""

    async def store_snapshot(self, session: str, offer: RunEnvironment) -> tuple[str, str, int]:
        """Keep the session as it stands; the snapshot's id, blob and size."""

    async def on_run_ended(
        self, session: str, view: ActiveRunView, result: RunResult, *, kept: bool
    ) -> None:
        """The run is over, and so it stands."""

    async def evict(self, session: str) -> None:
        """Whatever is remembered of the session is not to be trusted any more."""


class ExecutionServices(Protocol):
    """What every run on its way needs of its node."""

    ask: AskActor
    call_notifier: CallNotifierPort
    blobs: Blobs
    reader: RunHistoryReader
    session_cache: SessionCachePort


class RunExecution:
    """Lives on the bus's loop."""

    def __init__(
        self, works: ExecutionServices, driver: Driver, session: str, view: ActiveRunView
    ) -> None:
        assert view.offer is not UNSET
        self._services, self._driver, self._session, self._view = works, driver, session, view
        self._environment, self._limit_ms = view.offer, view.offer.limits.wall_ms
        self._recorder = StepRecorder(works.ask, works.blobs, session, view)
        self._calls = CallCoordinator(
            self._recorder, works.call_notifier, works.reader, self._limit_ms
        )
        self._call_error: Exception | None = None
        """Why a synchronous call could not be made."""
        self._sync_calls: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        """Until the run has ended or is parked."""
        goes_on = False
        try:
            step = await self._begin()
            while not isinstance(step, Finished):
                step = await self._next(step)
        except RunEnded:
            await self._end_stopped()
            return
        except ParkRequested as parks:
            goes_on = await self._park(parks)
            return
        finally:
            if not goes_on:  # What it waits for may have begun while it was being parked.
                self._services.call_notifier.cancel_run(self._view.run_id)
            for making in self._sync_calls:
                making.cancel()
        await self._end(step)

    async def stop(self) -> None:
        """Somebody wants the run to end now."""
        self._calls.stop()
        await self._driver.stop()

    async def abandon(self) -> None:
        """The run is another node's, or begins anew: nothing here counts any more."""
        self._calls.stop()
        await self._services.session_cache.evict(self._session)

    async def fail(self, why: CodedError) -> None:
        """The run cannot be driven: it ends without having been."""
        error = ErrorObject(code=why.code, message=why.message, hint=why.hint or None)
        await self._services.session_cache.evict(self._session)
        failed = RunResult.failed(RunStatus.VALIDATION_ERROR, error, "", Metrics())
        await self._end(Finished(failed, kept=False))

    # --- steps ------------------------------------------------------------------------------------

    async def _begin(self) -> Step:
        works, session, view = self._services, self._session, self._view
        tools = await works.reader.tools(self._environment)
        request = await works.reader.request(view.request, view.request_blob)
        given = RunInput(
            view.run_id, session, request, self._environment, tools, view.started_at_ms, ()
        )
        if view.snapshot_blob and view.calls:
            await works.session_cache.restore_parked(session, view, tools)
            self._recorder.resume_at(view.steps, answered=False)
            await self._calls.resume((*view.calls, *view.beside), split=view.split)
            timer_ms = None if view.timer_ms is UNSET else view.timer_ms
            numbers = [call.number for call in view.calls]
            answers, advance_ms = await self._calls.wait(numbers, timer_ms)
            return await self._driver.resume_parked(given, answers, self._sync_call, advance_ms)
        known = await works.session_cache.prepare(session, view, tools)
        steps = len(known) - (0 if view.forked is UNSET else view.forked.batches)
        self._recorder.resume_at(steps, answered=steps == view.steps)
        await self._calls.resume(view.beside, split=any(not batch.whole for batch in known))
        return await self._driver.begin(given._replace(recorded=known), self._sync_call)

    async def _next(self, step: CallsRequested | TurnInputs) -> Step:
        if self._call_error is not None:
            raise self._call_error
        if isinstance(step, TurnInputs):
            await self._recorder.record(step.inputs)
            return await self._driver.next_step({})
        try:
            answers, advance_ms = await self._calls.request_and_wait(step)
        except TimeoutError:
            late = await self._driver.next_step({}, self._limit_ms + 1)
            return late if isinstance(late, Finished) else await self._wall_timeout()
        return await self._driver.next_step(answers, advance_ms)

    async def _sync_call(self, call: ProgramCall) -> ToolResult | None:
        """A synchronous call, in the middle of a step. If the run's time is up meanwhile, the
        sandbox ends the run, and with it whoever waits here."""
        task = asyncio.current_task()
        assert task is not None
        self._sync_calls.add(task)
        try:
            answers, _ = await self._calls.request_and_wait(CallsRequested((call,)))
            return answers[call.id]
        except TimeoutError:
            return await asyncio.Future()
        except (RunEnded, ParkRequested, CodedError) as why:
            self._call_error = why
            return None
        finally:
            self._sync_calls.discard(task)

    async def _wall_timeout(self) -> Finished:
        """The driver does not see it."""
        stopped = await self._driver.stop() or RunResult()
        text = f"the run took longer than {self._limit_ms} ms"
        error = ErrorObject(code="TIMEOUT_WALL", message=text)
        result = RunResult.failed(RunStatus.TIMEOUT, error, stopped.stdout, stopped.metrics)
        return Finished(result, kept=False)

    # --- the last of them, and what the node remembers --------------------------------------------

    async def _end(self, last: Finished) -> None:
        """What the run did to its session stands if the record says so."""
        memory, session, result, kept = (
            self._services.session_cache,
            self._session,
            last.result,
            last.kept,
        )
        if kept and result.snapshot_id is not None:
            result = await self._with_snapshot(result)
        said = await self._recorder.end(result, kept=kept, moves=last.inputs)
        stands = kept and said.ended in ("Completed", "Failed")
        if kept and not stands:
            await memory.evict(session)
        else:
            await memory.on_run_ended(session, self._view, result, kept=stands)

    async def _with_snapshot(self, result: RunResult) -> RunResult:
        """A run that has come to its end has done what it did, also if its session is too large
        to be kept."""
        try:
            snapshot_id, _, _ = await self._services.session_cache.store_snapshot(
                self._session, self._environment
            )
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

    async def _end_stopped(self) -> None:
        """The run has ended by itself, or is to; its driver goes no further."""
        result = await self._driver.stop()
        await self._services.session_cache.evict(self._session)
        await self._recorder.end_stopped(result)

    async def _park(self, parks: ParkRequested) -> bool:
        """Whether the run is to go on when what it waits for has come."""
        snapshot = await self._services.session_cache.park(self._session, self._environment)
        return await self._recorder.park(parks.code, parks.operations, snapshot, split=parks.split)
