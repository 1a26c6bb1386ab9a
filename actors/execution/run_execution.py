"""``RunExecution``: one run from its first step to its last; and how many resume at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

import msgspec
from msgspec import UNSET

from rookery.actors.execution.calls import CallCoordinator, CallNotifierPort, SyncCalls
from rookery.actors.execution.driver import (
    AskModel,
    AwaitModel,
    CallsRequested,
    Driver,
    Finished,
    RunInput,
    StartJob,
    Step,
    TurnInputs,
)
from rookery.actors.execution.history import RunHistoryReader
from rookery.actors.execution.result_sender import LiveOutput, SendOutput
from rookery.actors.execution.run_hooks import (
    HOOK_EXECUTOR_MISSING,
    ExecutedOnceMore,
    RunHooks,
    RunStopped,
)
from rookery.actors.execution.session_cache import SessionCachePort
from rookery.actors.execution.step_recorder import (
    ParkRequested,
    RunEnded,
    StepRecorder,
    parked_output,
)
from rookery.actors.hooks.points import HookPoints
from rookery.actors.kernel.executors import AskActor
from rookery.actors.messages import ActiveRunView
from rookery.actors.sandbox import ToolResult
from rookery.bus.ports import Blobs, wait_first
from rookery.schemas.agents import RUN_CODE, ModelUsage
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.facts.model import Requested
from rookery.schemas.run import Diagnostic, ErrorObject, RunRequest, RunResult, RunStatus, Severity

if TYPE_CHECKING:
    from rookery.actors.execution.models.code_programs import CodePrograms

__all__ = [
    "ExecutionServices",
    "Resumptions",
    "RunExecution",
]

# --- run execution --------------------------------------------------------------------------------

# ``RunExecution``: one run from its first step to its last, between its driver and its actors.
#
# A request of the driver is recorded before it is performed, unless its calls only read. An outcome
# is recorded with the step that continues with it. When a run is resumed on any node, the driver
# gets the recorded outcomes again and repeats its requests, which are not recorded twice. A
# cancellation takes effect at the next recorded step, an urgent one at once.


class ExecutionServices(Protocol):
    """What a run needs of its node."""

    ask: AskActor
    call_notifier: CallNotifierPort
    blobs: Blobs
    reader: RunHistoryReader

    @property
    def hook_points(self) -> Callable[[str, ActiveRunView], HookPoints]: ...

    @property
    def send_output(self) -> SendOutput: ...


class RunExecution:
    """Lives on the bus's loop."""

    def __init__(
        self,
        services: ExecutionServices,
        driver: Driver,
        memory: SessionCachePort,
        session: str,
        view: ActiveRunView,
        *,
        programs: CodePrograms | None = None,
    ) -> None:
        """``programs``: those in which a model acts, if one drives the run."""
        assert view.offer is not UNSET
        self._services, self._driver, self._session, self._view = services, driver, session, view
        self._memory, self._programs = memory, programs
        self._environment, model = view.offer, view.offer.model
        self._limit_ms = view.offer.limits.wall_ms if model is UNSET else model.limits.wall_ms
        self._recorder = StepRecorder(
            services.ask, services.blobs, session, view, services.call_notifier.begin_step
        )
        points = services.hook_points(session, view)
        self._hooks = RunHooks(points, self._recorder, view)
        if programs is not None:
            programs.use(points)
        self._calls = CallCoordinator(
            self._recorder,
            services.call_notifier,
            services.reader,
            self._limit_ms,
            self._hooks,
        )
        self._output = LiveOutput(
            services.send_output, session, view.run_id, lambda: self._recorder.is_recovering
        )
        self._image = view.snapshot_blob
        """The blob that the run is resumed from."""
        self._sync_calls = SyncCalls(self._answers)
        self._has_begun = False
        """Whether the driver has taken a step."""
        self._stopping: asyncio.Task[RunResult | None] | None = None
        """The end of the program, with its output so far."""

    @property
    def session(self) -> str:
        return self._session

    async def run(self) -> bool:
        """Execute the run until it ends or parks; true if it is to be executed once more."""
        continues = False
        try:
            step = await self._begin()
            while not isinstance(step, Finished):
                step = await self._next(step)
            step = await self._hooks.complete(step)
        except RunEnded:
            await self._end_stopped()
            return False
        except ParkRequested as request:
            continues = await self._park(request)
            return False
        except ExecutedOnceMore:
            await self._memory.evict(self._session)
            return True
        except RunStopped as stopped:
            await self._memory.evict(self._session)
            step = stopped.last
        finally:
            self._calls.close()
            if not continues:  # A call may have begun while the run was being parked.
                self._services.call_notifier.cancel_run(self._view.run_id)
            self._sync_calls.cancel()
            if self._programs is not None:
                await self._programs.close()
        await self._end(step)
        return False

    async def stop(self) -> None:
        """End the run now."""
        self._hooks.cancel()
        self._calls.stop()
        await self._stop_driver()

    async def abandon(self) -> None:
        """Drop the run: another node owns it, or it is executed again."""
        self._hooks.cancel()
        self._calls.stop()
        await self._evict()

    async def park_for(self, hook: str) -> None:
        """Park the run before its next step: a hook of it is missing."""
        await self._park(ParkRequested(HOOK_EXECUTOR_MISSING, (), is_repeatable=True, hook=hook))

    async def fail(self, why: CodedError) -> None:
        """End the run with ``why`` as its error: it cannot be executed, or may not continue."""
        error = ErrorObject(code=why.code, message=why.message, hint=why.hint or None)
        await self._evict()
        output = await parked_output(self._services.blobs, self._view)
        is_hook = why.code == "HOOK_FAILED"
        status = RunStatus.RUNTIME_ERROR if is_hook else RunStatus.VALIDATION_ERROR
        failed = RunResult.failed(status, error)
        await self._end(Finished(failed.with_output(output), kept=False))

    # --- steps ------------------------------------------------------------------------------------

    async def _begin(self) -> Step:
        services, session, view = self._services, self._session, self._view
        tools = await services.reader.tools(self._environment)
        request = await self._request_of_run()
        run_input = RunInput(
            view.run_id,
            session,
            request,
            self._environment,
            tools,
            view.started_at_ms,
            (),
            self._output.add,
            (view.baseline, view.topology_epoch),
            *(one or ModelUsage() for one in (view.model_usage, view.child_usage)),
        )
        if view.snapshot_blob and view.calls:
            await self._memory.restore_parked(session, view, tools)
            self._recorder.resume_at(view.steps, answered=False)
            await self._calls.resume((*view.calls, *view.beside), split=view.split)
            timer_ms = None if view.timer_ms is UNSET else view.timer_ms
            numbers = [call.number for call in view.calls]
            answers, advance_ms = await self._calls.wait(numbers, timer_ms)
            self._has_begun = True
            return await self._driver.resume_parked(
                run_input, answers, self._sync_calls.make, advance_ms
            )
        recorded = await self._memory.prepare(session, view, tools)
        run_input = run_input._replace(request=await self._hooks.begin(request))
        if self._environment.model is not UNSET:
            return await self._continue_with_model(run_input)
        steps = view.steps_before + len(recorded)
        steps -= 0 if view.forked is UNSET else view.forked.batches
        self._recorder.resume_at(steps, answered=steps == view.steps)
        await self._calls.resume(view.beside, split=any(not batch.whole for batch in recorded))
        if view.steps_before < steps == view.steps:
            recorded = [*recorded[:-1], await self._calls.judge_batch(recorded[-1])]
        self._has_begun = True
        return await self._driver.begin(
            run_input._replace(recorded=recorded), self._sync_calls.make
        )

    async def _request_of_run(self) -> RunRequest:
        """The whole request; a program that is resumed from an image has its files."""
        reader, view = self._services.reader, self._view
        if sensitive := await reader.sensitive_tools(self._environment):
            self._recorder.hide(sensitive, reader.call_seal(self._session))
        request = await reader.request(view.request, view.request_blob)
        if view.snapshot_blob and view.calls:
            return request
        return await reader.complete(request)

    async def _continue_with_model(self, run_input: RunInput) -> Step:
        """Go on from the record, which says what the model knows: no step is repeated."""
        view = self._view
        self._recorder.resume_at(view.steps, answered=not view.calls)
        await self._calls.resume(view.calls)
        self._has_begun = True
        if not view.calls:
            return await self._driver.begin(run_input, self._sync_calls.make)
        numbers = [call.number for call in view.calls]
        if self._programs is None:
            answers, _ = await self._calls.wait(numbers, None, whole=True)
        else:
            names = {call.operation_id for call in view.calls if call.name == RUN_CODE}
            await self._programs.resume(names, self._calls.is_last_open)
            answers, _ = await self._programs.beside(self._calls.wait(numbers, None, whole=True))
        return await self._driver.resume_parked(run_input, answers, self._sync_calls.make)

    async def _next(
        self, step: CallsRequested | AskModel | StartJob | AwaitModel | TurnInputs
    ) -> Step:
        if self._sync_calls.error is not None:
            raise self._sync_calls.error
        if isinstance(step, TurnInputs):
            await self._recorder.record(step.inputs)
            return await self._driver.next_step({})
        if isinstance(step, AskModel):
            return await self._ask_model(step)
        if isinstance(step, StartJob):
            await self._recorder.record((), questions=(step.started,))
            return await self._driver.next_step({})
        answers: dict[int, ToolResult] = {}
        advance_ms = 0
        try:
            if isinstance(step, AwaitModel):
                await self._wait_for_model(step)
            else:
                answers, advance_ms = await self._request(step)
        except TimeoutError:
            late = await self._driver.next_step({}, self._limit_ms + 1)
            return late if isinstance(late, Finished) else await self._wall_timeout()
        if isinstance(step, AwaitModel) and step.question is not None:
            return await self._continue_answered(step.question)
        return await self._driver.next_step(answers, advance_ms)

    async def _ask_model(self, step: AskModel) -> Step:
        """Record the question, and go on from the answer."""
        await self._hooks.before_question(step)
        await self._recorder.record(step.inputs, answers=step.answers, questions=step.questions)
        return await self._continue_answered(step.question)

    async def _continue_answered(self, question: Requested) -> Step:
        """The step that follows from the answer to a question, once its hooks have judged it."""
        following = await self._driver.next_step({})
        if not isinstance(following, TurnInputs | StartJob):
            await self._hooks.after_answer(question, following.answers)
        return following

    async def _request(self, step: CallsRequested) -> tuple[dict[int, ToolResult], int]:
        """The outcomes of calls; a model's programs are executed meanwhile."""
        programs = self._programs
        if programs is None:
            return await self._calls.request_and_wait(step)
        code = [call for call in step.calls if call.name == RUN_CODE]
        operations = {self._recorder.operation_id(call.id): call.kwargs for call in code}

        def start() -> None:
            programs.start(operations, self._calls.is_last_open)

        return await programs.beside(self._calls.request_and_wait(step, start))

    async def _wait_for_model(self, step: AwaitModel) -> None:
        if step.inputs:
            await self._recorder.record(step.inputs, answers=step.answers)
            step = step._replace(answers=())
        await self._calls.wait_for_model(step)

    async def _answers(self, requested: CallsRequested) -> dict[int, ToolResult]:
        return (await self._calls.request_and_wait(requested))[0]

    async def _wall_timeout(self) -> Finished:
        """The result of a run whose time is up although its driver has not noticed."""
        stopped = await self._stop_driver() or RunResult()
        text = f"the run took longer than {self._limit_ms} ms"
        error = ErrorObject(code="TIMEOUT_WALL", message=text)
        result = RunResult.failed(RunStatus.TIMEOUT, error, metrics=stopped.metrics)
        return Finished(result.with_output(stopped.output), kept=False)

    # --- the last of them, and what the node remembers --------------------------------------------

    async def _end(self, last: Finished) -> None:
        """Record the end. The run's changes to its session are valid if the turn accepted the
        result."""
        cache, session, result, kept = self._memory, self._session, last.result, last.kept
        if kept and result.snapshot_id is not None:
            result = await self._with_snapshot(result)
        self._output.flush()
        for content in last.artifacts:
            await self._services.blobs.put(content)
        view = await self._recorder.end(
            result, kept=kept, moves=last.inputs, answers=last.answers, withheld=last.withheld
        )
        self._on_unparked()
        if self._programs is not None:
            self._programs.on_run_ended()
        is_valid = kept and view.ended in ("Completed", "Failed")
        if kept and not is_valid:
            await cache.evict(session)
        else:
            await cache.on_run_ended(session, self._view, result, kept=is_valid)

    async def _with_snapshot(self, result: RunResult) -> RunResult:
        """Add a snapshot to the result. If the session is too large to store, the result gets a
        warning instead: the run has ended normally."""
        try:
            snapshot_id = await self._memory.store_snapshot(self._session, self._environment)
        except Refused as refusal:
            warning = Diagnostic(
                severity=Severity.WARNING,
                code=refusal.code,
                message=refusal.message,
                hint=refusal.hint or None,
            )
            diagnostics = (*result.diagnostics, warning)
            return msgspec.structs.replace(result, snapshot_id=None, diagnostics=diagnostics)
        return msgspec.structs.replace(result, snapshot_id=snapshot_id)

    async def _stop_driver(self) -> RunResult | None:
        """End the program, once; the result that a suspended one has so far."""
        if self._stopping is None:
            self._stopping = asyncio.ensure_future(self._driver.stop())
        return await asyncio.shield(self._stopping)

    async def _evict(self) -> None:
        """Drop the session from memory: it may have what is not on record."""
        await self._memory.evict(self._session)
        if self._programs is not None:
            await self._programs.evict()

    async def _end_stopped(self) -> None:
        """End a run that was stopped."""
        result = await self._stop_driver()
        await self._evict()
        self._output.flush()
        await self._recorder.end_stopped(result)
        self._on_unparked()

    async def _park(self, request: ParkRequested) -> bool:
        """Park the run. True if it is still to continue when a call ends, or its hook may be
        invoked again. A hook interrupts a run at a step that is not on record, so no image of its
        program is stored: the record leads to that step again."""
        blobs, session, view = self._services.blobs, self._session, self._view
        output = self._driver.output() if self._has_begun else await parked_output(blobs, view)
        self._output.flush()
        if request.hook:
            snapshot = "", ""
            await self._memory.evict(session)
        else:
            is_repeatable = request.is_repeatable and not self._image
            snapshot = await self._memory.park(session, view, is_repeatable=is_repeatable)
        continues = await self._recorder.park(request, snapshot, output)
        self._on_unparked(named=snapshot[1])
        return continues

    def _on_unparked(self, named: str = "") -> None:
        """Give up the image that the run was resumed from, unless it is still ``named``."""
        if self._image and self._image != named:
            self._memory.on_unparked(self._image)


# --- resumptions ----------------------------------------------------------------------------------

# ``Resumptions``: how many parked runs are resumed at once, the last answered first.
#
# When many approvals are answered together, or many runs that a hook had interrupted go on, they
# would resume at the same time: a new run would wait for all of them, and the hook would time out.
# A run counts until it has executed, at most ``WAIT_S``: its call may take long.


AT_ONCE_MAX = 6
"""More do not end sooner, and a new run beside them waits longer."""
WAIT_S = 0.25


class Resumptions:
    """One per node; lives on the bus's loop."""

    def __init__(self, is_executing: Callable[[str], bool]) -> None:
        """``is_executing``: whether this node executes a run now."""
        self._is_executing = is_executing
        self._count = 0
        self._waiting: list[asyncio.Future[None]] = []
        self._executed: dict[str, asyncio.Future[None]] = {}
        """By run, what ends its resumption."""
        self._turns: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def admit(self, run_id: str) -> AsyncIterator[None]:
        """Wait for the run's turn; on leaving, until the run has executed. A run that has not
        parked has nothing to wait for."""
        if self._is_executing(run_id):
            yield
            return
        await self._enter()
        try:
            yield
            await self._wait_executed(run_id)
        finally:
            self._pass_on()

    async def wait_for_turn(self, run_id: str) -> None:
        """Wait for the turn of a run that a hook had interrupted, which then executes."""
        await self._enter()
        executed = asyncio.create_task(self._wait_executed(run_id))
        self._turns.add(executed)
        executed.add_done_callback(self._end_turn)

    def _end_turn(self, executed: asyncio.Task[None]) -> None:
        self._turns.discard(executed)
        self._pass_on()

    def end(self, run_id: str) -> None:
        """Note that the run has executed until it ended or parked."""
        executed = self._executed.pop(run_id, None)
        if executed is not None and not executed.done():
            executed.set_result(None)

    async def _wait_executed(self, run_id: str) -> None:
        executed = asyncio.get_running_loop().create_future()
        self._executed[run_id] = executed
        await wait_first((executed,), WAIT_S)
        if self._executed.get(run_id) is executed:
            del self._executed[run_id]

    async def _enter(self) -> None:
        if self._count < AT_ONCE_MAX:
            self._count += 1
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(admitted)
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Admit the newest that waits."""
        while self._waiting:
            admitted = self._waiting.pop()
            if not admitted.done():
                admitted.set_result(None)
                return
        self._count -= 1
