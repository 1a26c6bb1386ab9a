"""What takes a turn's steps: a program in the sandbox, or whoever else stands in its place.

A driver is told what its run was given, then what its calls came to, and each time says what it
wants next. It knows no facts and no journal; its synchronous calls it makes itself, through
``MakeCall``, in the middle of a step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import CancelledError as FutureCancelled
from typing import NamedTuple, Protocol

import msgspec

from rookery.actors.execution.history import plain
from rookery.actors.sandbox.contract import Answer, AnswerCall, Call, Outcome, Tool, Waiting
from rookery.actors.sandbox.sandbox import Sandbox
from rookery.actors.sandbox.sessions.recorded_runs import Batch
from rookery.schemas.calls import Move, Offer
from rookery.schemas.run import RunRequest, RunResult

__all__ = ["Driver", "Ends", "Given", "MakeCall", "Moves", "SandboxDriver", "Step", "Wants"]

MakeCall = Callable[[Call], Awaitable[Answer | None]]
"""Make a synchronous call on the bus's loop; ``None``: not now, the step is to end here."""


class Given(NamedTuple):
    """What a run is given."""

    run_id: str
    session: str
    request: RunRequest
    offer: Offer
    tools: Sequence[Tool]
    now_ms: int
    known: Sequence[Batch]
    """What it was told before it was interrupted, step by step; of moves alone, nothing."""


class Wants(NamedTuple):
    """These calls, answered together."""

    calls: tuple[Call, ...]
    """All that it waits for, also those it has waited for before."""
    moves: tuple[Move, ...] = ()
    """What the turn does before, beside what wanting calls is anyway."""
    timer_ms: int | None = None
    """It goes on after this time, whatever is answered by then."""


class Moves(NamedTuple):
    """Something has happened to the turn that calls for nothing, and is to stand before it goes
    on."""

    moves: tuple[Move, ...]


class Ends(NamedTuple):
    """The run is over."""

    result: RunResult
    kept: bool
    """Whether what it did to its session stands."""
    moves: tuple[Move, ...] | None = None
    """How the turn gets there, if not as its result says."""


Step = Wants | Moves | Ends


class Driver(Protocol):
    """Takes one run's steps. Used on the bus's loop. While a step is under way, the run's time is
    the driver's to mind."""

    async def begin(self, given: Given, call: MakeCall) -> Step:
        """The first step."""

    async def wake(
        self, given: Given, answers: Mapping[int, Answer], call: MakeCall, advance_ms: int = 0
    ) -> Step:
        """The next step of a run that was parked."""

    async def go_on(self, answers: Mapping[int, Answer], advance_ms: int = 0) -> Step:
        """The next step, ``advance_ms`` later by the driver's clock. Without answers, moves stand
        now, or time has passed and nothing else happened."""

    async def stop(self) -> RunResult | None:
        """End the run now; what it had come to, if the driver itself was at rest. A step under way
        comes back at once, whatever it is."""


class SandboxDriver:
    """A program in the sandbox takes the steps."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._loop = asyncio.get_running_loop()
        self._session = ""
        self._answer: AnswerCall = _not_now

    async def begin(self, given: Given, call: MakeCall) -> Step:
        self._take(given, call)
        request = msgspec.structs.replace(
            plain(given.request), session_id=given.session, limits=given.offer.limits
        )
        started = self._sandbox.submit(
            request, now_ms=given.now_ms, answer=self._answer, tools=given.tools, known=given.known
        )
        return self._step(await asyncio.wrap_future(started))

    async def wake(
        self, given: Given, answers: Mapping[int, Answer], call: MakeCall, advance_ms: int = 0
    ) -> Step:
        self._take(given, call)
        return await self.go_on(answers, advance_ms)

    async def go_on(self, answers: Mapping[int, Answer], advance_ms: int = 0) -> Step:
        going = self._sandbox.submit_resume(
            self._session, answers, advance_ms=advance_ms, answer=self._answer
        )
        return self._step(await asyncio.wrap_future(going))

    async def stop(self) -> RunResult | None:
        return await self._sandbox.aside(self._sandbox.cancel, self._session)

    def _take(self, given: Given, call: MakeCall) -> None:
        self._session = given.session

        def answer(asked: Call) -> Answer | None:
            """In the sandbox's thread, which stands still meanwhile."""
            if asked.awaited:
                return None  # They go out together.
            made = asyncio.run_coroutine_threadsafe(_of(call(asked)), self._loop)
            try:
                return made.result()
            except (FutureCancelled, asyncio.CancelledError):
                return None

        self._answer = answer

    def _step(self, outcome: Outcome) -> Step:
        if isinstance(outcome, Waiting):
            return Wants(outcome.calls, timer_ms=outcome.timer_ms)
        return Ends(outcome, self._sandbox.last_run_counts(self._session))


async def _of(made: Awaitable[Answer | None]) -> Answer | None:
    return await made


def _not_now(_call: Call) -> Answer | None:
    return None
