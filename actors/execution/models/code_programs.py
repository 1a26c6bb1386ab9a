"""``CodePrograms``: the programs in which the model of a run acts.

They are executed in the session's sandbox, one after the other, while the run waits for its calls
of ``run_code``. Their steps are recorded beside those of the run; a node that continues the run
repeats the program that has not ended from what is on record, with the outcomes of its calls. While
all calls of a program wait for slow events, so does the call of ``run_code``, and the run may park.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import UNSET

from rookery.actors.execution.agents.code_history import program_request
from rookery.actors.execution.agents.code_tool import code_value
from rookery.actors.execution.calls import CallCoordinator, CallNotifierPort, SyncCalls
from rookery.actors.execution.driver import CallsRequested, Driver, Finished, RunInput, Step
from rookery.actors.execution.history import PastRun, RunHistoryReader
from rookery.actors.execution.run_hooks import RunHooks
from rookery.actors.execution.session_cache import ProgramCachePort
from rookery.actors.execution.step_recorder import (
    ParkRequested,
    RunEnded,
    StepRecorder,
    operation_id,
)
from rookery.actors.hooks.points import HookPoints
from rookery.actors.kernel.executors import AskActor
from rookery.actors.messages import (
    ActiveRunView,
    CallProgress,
    CodeEnd,
    RecordCodeStep,
    RecordOutcome,
)
from rookery.actors.sandbox import ToolResult
from rookery.actors.tools.effects import IntentStatus
from rookery.bus.ports import IN_FACT_BYTES_MAX, Blobs, wait_first
from rookery.schemas.calls import CallOutcome, RequestedCall
from rookery.schemas.codec import encode_json
from rookery.schemas.digest import digest_bytes
from rookery.schemas.facts import code
from rookery.schemas.run import ErrorObject, RunResult, RunStatus

__all__ = ["CodePrograms", "CodeServices"]

OPERATIONS_MAX = 32
"""Of those that a parked run names."""


class CodeServices(Protocol):
    """What programs need of their node."""

    ask: AskActor
    call_notifier: CallNotifierPort
    blobs: Blobs
    reader: RunHistoryReader

    @property
    def driver(self) -> Callable[[], Driver]: ...


class CodeRecorder(StepRecorder):
    """Records one program beside the steps of its run. ``view`` is that of the program: its
    ``run_id`` is the operation of its call."""

    def __init__(
        self, services: CodeServices, session: str, run: ActiveRunView, view: ActiveRunView
    ) -> None:
        super().__init__(
            services.ask, services.blobs, session, view, services.call_notifier.begin_step
        )
        self.run_id, self._run_started_at_ms = run.run_id, run.started_at_ms

    def operation_id(self, number: int) -> str:
        """As of any call, also if the program begins anew because nothing of it was recorded."""
        view = self._view
        return operation_id(self._run_started_at_ms, self._session, view.run_id, number)

    async def record_request(
        self,
        requested: CallsRequested,
        calls: tuple[RequestedCall, ...],
        under_way: Sequence[str],
    ) -> None:
        taken = self._take_inputs()
        self._answered = False
        if self._steps <= self._view.steps:
            return
        step = RecordCodeStep(
            run_id=self.run_id,
            operation_id=self._view.run_id,
            number=self._steps,
            begun_at_ms=self._view.started_at_ms,
            given=taken.given,
            passed_ms=taken.passed_ms,
            timer_ms=UNSET if requested.timer_ms is None else requested.timer_ms,
            calls=calls,
            op_refs=tuple(sorted(under_way)),
            barrier_ids=tuple(sorted(self.operation_id(call.id) for call in requested.calls)),
            outcomes=taken.outcomes,
            hooks=taken.hooked.facts,
            executed=dict(taken.hooked.executed),
        )
        view = await self._with_outcomes(step, step.outcomes)
        if view.cancelling or view.ended:
            raise RunEnded

    def to_end(self, last: Finished) -> CodeEnd:
        """The end of the program, which is recorded with that of its call."""
        number = self._next_number
        taken = self._take_inputs()
        return CodeEnd(
            number=number,
            begun_at_ms=self._view.started_at_ms,
            given=taken.given,
            passed_ms=taken.passed_ms,
            outcomes=taken.outcomes,
            hooks=taken.hooked.facts,
            kept=last.kept,
            instructions=last.result.metrics.instructions,
            calls=last.result.external_calls,
        )


class _OpenProgram(NamedTuple):
    """One program while it is executed."""

    view: ActiveRunView
    recorder: CodeRecorder
    calls: CallCoordinator
    sync_calls: SyncCalls
    driver: Driver
    limit_ms: int


class CodePrograms:
    """One per execution of a run; used on the bus's loop."""

    def __init__(
        self,
        services: CodeServices,
        memory: ProgramCachePort,
        session: str,
        view: ActiveRunView,
        *,
        now_ms: Callable[[], int],
        on_ended: Callable[[str, code.Ended], None],
    ) -> None:
        """``on_ended`` gets the end of each program as it is recorded next."""
        assert view.offer is not UNSET
        self._services, self._memory, self._session = services, memory, session
        self._view, self._environment = view, view.offer
        self._now_ms, self._on_ended = now_ms, on_ended
        self._runs_before = view.runs_before
        self._task: asyncio.Task[None] | None = None
        self._program: _OpenProgram | None = None
        """The one that is executed now."""
        self._closed = asyncio.Event()
        self._waits: tuple[str, tuple[str, ...]] = ("", ())
        """The call of ``run_code`` that waits, and the operations it waits for."""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Why a program cannot be executed."""

    def use(self, points: HookPoints) -> None:
        """Invoke these hooks, which are those of the run."""
        self._points = points

    _points: HookPoints

    # --- programs of an answer --------------------------------------------------------------------

    def start(
        self, calls: Mapping[str, Mapping[str, Any]], is_last_open: Callable[[str], bool]
    ) -> None:
        """Execute the programs of these recorded calls in their order. ``is_last_open``: whether
        the run waits for this call alone."""
        code = {name: str(given.get("code", "")) for name, given in calls.items()}
        if code:
            self._task = asyncio.ensure_future(self._run(code, {}, is_last_open))

    async def resume(self, names: Collection[str], is_last_open: Callable[[str], bool]) -> None:
        """Execute the programs of those of these calls that have not ended."""
        if not names:
            return
        history = await self._services.reader.history(self._session, self._view.generation)
        found = {run.run_id: run for run in history.runs if run.run_id in names}
        left = {name: run for name, run in found.items() if run.ended_at is None}
        code = {name: run.request.code for name, run in left.items()}
        if code:
            self._task = asyncio.ensure_future(self._run(code, left, is_last_open))

    async def beside(
        self, waiting: Coroutine[Any, Any, tuple[dict[int, ToolResult], int]]
    ) -> tuple[dict[int, ToolResult], int]:
        """Let the run wait for its calls, unless a program cannot be executed."""
        task, failed = asyncio.ensure_future(waiting), self.failed
        try:
            await wait_first((task, failed))
            if failed.done():
                failed.result()
            return await task
        except ParkRequested as request:
            request.operations = self.awaited(request.operations)
            raise
        finally:
            task.cancel()

    def awaited(self, operations: Sequence[str]) -> tuple[str, ...]:
        """The operations, with those that a program waits for in the place of its call."""
        name, inner = self._waits
        found = [one for one in operations if one != name]
        return (*found, *inner) if len(found) < len(operations) else tuple(operations)

    async def close(self) -> None:
        """End the program that is executed; its record leads to where it was."""
        self._closed.set()
        if self._task is None:
            return
        program = self._program
        if program is not None:
            program.calls.stop()
            program.sync_calls.cancel()
            await program.driver.stop()
        await asyncio.wait({self._task})
        self.failed.cancel()
        if self._program is not None:
            await self._memory.evict(self._session)

    async def evict(self) -> None:
        """Drop what the programs left in memory: it may not be on record."""
        if self._task is not None:
            await self._memory.evict(self._session)

    def on_run_ended(self) -> None:
        """The end of the run is recorded."""
        if self._task is not None and self._program is None:
            self._memory.store_if_due(self._session, self._view)

    async def _run(
        self,
        code: Mapping[str, str],
        past: Mapping[str, PastRun],
        is_last_open: Callable[[str], bool],
    ) -> None:
        try:
            for name, text in code.items():
                if self._closed.is_set():
                    return
                report = await self._execute(name, text, past.get(name))
                if report is None:
                    return
                progress = CallProgress(operation_id=name, outcome=report.outcome)
                if not is_last_open(name):
                    await self._services.ask("turn", self._session, report, IntentStatus)
                else:  # The run's next step records it.
                    progress = msgspec.structs.replace(progress, unrecorded=report)
                self._services.call_notifier.notify(progress)
        except RunEnded:
            pass  # The run notices it, too.
        except BaseException as error:
            if not self.failed.done():
                self.failed.set_exception(error)
            if isinstance(error, asyncio.CancelledError):
                raise

    # --- one program ------------------------------------------------------------------------------

    async def _execute(self, name: str, code: str, past: PastRun | None) -> RecordOutcome | None:
        """How the call of ``run_code`` ends; ``None`` if the run ends or parks first."""
        services, environment = self._services, self._environment
        view = self._program_view(name, past)
        tools = await services.reader.program_tools(environment)
        recorded = list(await self._memory.prepare(self._session, view, tools))
        if self._closed.is_set():
            return None
        program = self._program = await self._begin(view)
        steps = len(recorded)
        program.recorder.resume_at(steps, answered=steps == view.steps)
        await program.calls.resume(view.beside, split=any(not one.whole for one in recorded))
        if 0 < steps == view.steps:
            recorded[-1] = await program.calls.judge_batch(recorded[-1])
        request = view.request
        assert request is not UNSET
        given = RunInput(
            name,
            self._session,
            msgspec.structs.replace(request, code=code),
            environment,
            tools,
            view.started_at_ms,
            recorded,
        )
        last = await self._finish(
            program, await program.driver.begin(given, program.sync_calls.make)
        )
        if self._closed.is_set():
            return None
        return await self._end(name, program, last)

    def _program_view(self, name: str, past: PastRun | None) -> ActiveRunView:
        """How far the program is, as if it were a run."""
        has_begun = past is not None and past.steps > 0
        request = self._view.request
        assert request is not UNSET
        return ActiveRunView(
            run_id=name,
            steps=past.steps if past is not None else 0,
            started_at_ms=past.now_ms if past is not None and has_begun else self._now_ms(),
            generation=self._view.generation,
            runs_before=self._runs_before,
            request=program_request(request, self._environment, ""),
            beside=past.beside if past is not None else (),
            offer=self._environment,
            hook_records=self._view.hook_records,
        )

    async def _begin(self, view: ActiveRunView) -> _OpenProgram:
        services, session = self._services, self._session
        recorder = CodeRecorder(services, session, self._view, view)
        hooks = RunHooks(self._points, recorder, view)
        limit_ms = self._environment.limits.wall_ms
        calls = CallCoordinator(recorder, services.call_notifier, services.reader, limit_ms, hooks)

        async def answers(requested: CallsRequested) -> dict[int, ToolResult]:
            return (await self._answers(program, requested))[0]

        driver = services.driver()
        program = _OpenProgram(view, recorder, calls, SyncCalls(answers), driver, limit_ms)
        return program

    async def _finish(self, program: _OpenProgram, step: Step) -> Finished:
        """Take the steps of the program to its last one."""
        while not isinstance(step, Finished):
            if program.sync_calls.error is not None:
                raise program.sync_calls.error
            assert isinstance(step, CallsRequested), "a program asks no model"
            try:
                answers, advance_ms = await self._answers(program, step)
            except TimeoutError:
                late = await program.driver.next_step({}, program.limit_ms + 1)
                return late if isinstance(late, Finished) else await _timed_out(program)
            step = await program.driver.next_step(answers, advance_ms)
        return step

    async def _answers(
        self, program: _OpenProgram, requested: CallsRequested
    ) -> tuple[dict[int, ToolResult], int]:
        """Request calls and wait for them; while all of them wait for slow events, the call of
        ``run_code`` does, too."""
        if self._closed.is_set():
            raise RunEnded
        numbers = [call.id for call in requested.calls]
        try:
            return await program.calls.request_and_wait(requested)
        except ParkRequested as request:
            waits = request
        while not waits.hook:
            self._show_waiting(program.view.run_id, waits)
            await program.calls.wait_progress()
            try:
                answers = await program.calls.wait(numbers, requested.timer_ms)
            except ParkRequested as request:
                waits = request
                continue
            self._show_waiting(program.view.run_id, None)
            return answers
        raise waits

    def _show_waiting(self, name: str, request: ParkRequested | None) -> None:
        """Tell the run what the call waits for, if it may park."""
        self._waits = (name, () if request is None else request.operations[:OPERATIONS_MAX])
        code = "" if request is None else request.code
        self._services.call_notifier.notify(
            CallProgress(operation_id=name, waits_for=code, by_event=bool(code) or UNSET)
        )

    async def _end(self, name: str, program: _OpenProgram, last: Finished) -> RecordOutcome:
        services, result = self._services, last.result
        for content in last.artifacts:
            await services.blobs.put(content)
        program.calls.close()
        value = code_value(result)
        text = encode_json(value)
        is_large = len(text) > IN_FACT_BYTES_MAX
        outcome = CallOutcome(
            value=None if is_large else value,
            value_blob=await services.blobs.put(text) if is_large else UNSET,
            duration_ms=result.metrics.duration_ms,
        )
        end = program.recorder.to_end(last)
        self._memory.count_run(self._session, program.view, result, kept=last.kept)
        self._runs_before += 1
        self._program = None
        ended = code.Ended(
            run=self._view.run_id,
            operation_id=name,
            number=end.number,
            begun_at_ms=end.begun_at_ms,
            instructions=end.instructions,
            calls=end.calls,
        )
        self._on_ended(self._session, ended)
        return RecordOutcome(
            operation_id=name,
            attempt=0,
            outcome=outcome,
            response_digest=digest_bytes(text),
            code=end,
        )


async def _timed_out(program: _OpenProgram) -> Finished:
    """The end of a program whose time is up although it has not noticed."""
    stopped = await program.driver.stop() or RunResult()
    text = f"the program took longer than {program.limit_ms} ms"
    error = ErrorObject(code="TIMEOUT_WALL", message=text)
    result = RunResult.failed(RunStatus.TIMEOUT, error, metrics=stopped.metrics)
    return Finished(result.with_output(stopped.output), kept=False)
