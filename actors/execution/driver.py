"""What takes a turn's steps: a program in the sandbox, or whoever else stands in its place.

A driver is told what its run was given, then what its calls came to, and each time says what it
wants next. It knows no facts and no journal; its synchronous calls it makes itself, through
``SyncCall``, in the middle of a step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future
from time import perf_counter
from typing import NamedTuple, Protocol

import msgspec

from rookery.actors.execution.history import without_limits
from rookery.actors.kernel import NO_METRICS, KernelMetrics
from rookery.actors.messages import TurnInput
from rookery.actors.sandbox.contract import (
    CallTool,
    Outcome,
    ProgramCall,
    SuspendedRun,
    Tool,
    ToolResult,
)
from rookery.actors.sandbox.sandbox import Sandbox
from rookery.actors.sandbox.sessions.recorded_runs import ResultBatch
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.run import RunRequest, RunResult

__all__ = [
    "CallsRequested",
    "Driver",
    "Finished",
    "RunInput",
    "SandboxDriver",
    "Step",
    "SyncCall",
    "TurnInputs",
]

SyncCall = Callable[[ProgramCall], Awaitable[ToolResult | None]]
"""Make a synchronous call on the bus's loop; ``None``: not now, the step is to end here."""


class RunInput(NamedTuple):
    """What a run is given."""

    run_id: str
    session: str
    request: RunRequest
    environment: RunEnvironment
    tools: Sequence[Tool]
    now_ms: int
    recorded: Sequence[ResultBatch]
    """What it was told before it was interrupted, step by step; of moves alone, nothing."""


class CallsRequested(NamedTuple):
    """These calls, answered together."""

    calls: tuple[ProgramCall, ...]
    """All that it waits for, also those it has waited for before."""
    inputs: tuple[TurnInput, ...] = ()
    """What the turn does before, beside what wanting calls is anyway."""
    timer_ms: int | None = None
    """It goes on after this time, whatever is answered by then."""


class TurnInputs(NamedTuple):
    """Something has happened to the turn that calls for nothing, and is to stand before it goes
    on."""

    inputs: tuple[TurnInput, ...]


class Finished(NamedTuple):
    """The run is over."""

    result: RunResult
    kept: bool
    """Whether what it did to its session stands."""
    inputs: tuple[TurnInput, ...] | None = None
    """How the turn gets there, if not as its result says."""


Step = CallsRequested | TurnInputs | Finished


class Driver(Protocol):
    """Takes one run's steps. Used on the bus's loop. While a step is under way, the run's time is
    the driver's to mind."""

    async def begin(self, given: RunInput, call: SyncCall) -> Step:
        """The first step."""

    async def resume_parked(
        self,
        given: RunInput,
        answers: Mapping[int, ToolResult],
        call: SyncCall,
        advance_ms: int = 0,
    ) -> Step:
        """The next step of a run that was parked."""

    async def next_step(self, answers: Mapping[int, ToolResult], advance_ms: int = 0) -> Step:
        """The next step, ``advance_ms`` later by the driver's clock. Without answers, moves stand
        now, or time has passed and nothing else happened."""

    async def stop(self) -> RunResult | None:
        """End the run now; what it had come to, if the driver itself was at rest. A step under way
        comes back at once, whatever it is."""


class SandboxDriver:
    """A program in the sandbox takes the steps."""

    def __init__(self, sandbox: Sandbox, metrics: KernelMetrics = NO_METRICS) -> None:
        self._sandbox, self._metrics = sandbox, metrics
        self._language, self._sync_calls_s = "", 0.0
        self._loop = asyncio.get_running_loop()
        self._session = ""
        self._answer: CallTool = _no_answer

    async def begin(self, given: RunInput, call: SyncCall) -> Step:
        self._set_run(given, call)
        request = msgspec.structs.replace(
            without_limits(given.request), session_id=given.session, limits=given.environment.limits
        )
        started = self._sandbox.submit(
            request,
            now_ms=given.now_ms,
            answer=self._answer,
            tools=given.tools,
            known=given.recorded,
        )
        return await self._step(started)

    async def resume_parked(
        self,
        given: RunInput,
        answers: Mapping[int, ToolResult],
        call: SyncCall,
        advance_ms: int = 0,
    ) -> Step:
        self._set_run(given, call)
        return await self.next_step(answers, advance_ms)

    async def next_step(self, answers: Mapping[int, ToolResult], advance_ms: int = 0) -> Step:
        going = self._sandbox.submit_resume(
            self._session, answers, advance_ms=advance_ms, answer=self._answer
        )
        return await self._step(going)

    async def stop(self) -> RunResult | None:
        return await self._sandbox.in_thread(self._sandbox.cancel, self._session)

    def _set_run(self, given: RunInput, call: SyncCall) -> None:
        self._session, self._language = given.session, given.environment.language

        def answer(asked: ProgramCall) -> ToolResult | None:
            """In the sandbox's thread, which stands still meanwhile."""
            if asked.awaited:
                return None  # They go out together.
            began_s = perf_counter()
            made = asyncio.run_coroutine_threadsafe(_await_result(call(asked)), self._loop)
            try:
                return made.result()
            except (FutureCancelled, asyncio.CancelledError):
                return None
            finally:
                self._sync_calls_s += perf_counter() - began_s

        self._answer = answer

    async def _step(self, under_way: Future[Outcome]) -> Step:
        began_s, self._sync_calls_s = perf_counter(), 0.0
        outcome = await asyncio.wrap_future(under_way)
        seconds = perf_counter() - began_s - self._sync_calls_s
        self._metrics.sandbox_step(self._language, max(0.0, seconds))
        if isinstance(outcome, SuspendedRun):
            return CallsRequested(outcome.calls, timer_ms=outcome.timer_ms)
        return Finished(outcome, self._sandbox.last_run_kept(self._session))


async def _await_result(made: Awaitable[ToolResult | None]) -> ToolResult | None:
    return await made


def _no_answer(_call: ProgramCall) -> ToolResult | None:
    return None
