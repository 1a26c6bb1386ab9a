"""Where tools are called: the port, and the one that calls functions of this process.

A host is given calls whose intent stands. It keeps their time, passes on that nobody wants them any
more, and answers what its tools declared and nothing else. It knows no ledger and tries nothing
twice.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, wait
from typing import Any, Final, Protocol

from msgspec.structs import replace

from rookery.actors.tools.pipeline import fault, fault_of
from rookery.actors.tools.registry import (
    RegisteredTool,
    ToolCallContext,
    ToolError,
    ToolRegistry,
)
from rookery.actors.tools.threads import Threads
from rookery.schemas.calls import CallOutcome
from rookery.schemas.errors import CodedError

__all__ = ["LocalTools", "OutcomeUnknown", "ToolHost"]

log = logging.getLogger(__name__)

THREADS_MAX: Final = 256


class OutcomeUnknown(Exception):
    """The tool may have acted, or not; ``str`` says why nobody knows."""


class ToolHost(Protocol):
    """Calls the tools of one surface. Used on the bus's loop."""

    async def ready(self, name: str) -> None:
        """Wait until the tool can be called."""

    async def call(self, ctx: ToolCallContext, timeout_ms: int) -> CallOutcome:
        """What came of a call within its time: a value that fits what the tool declared, or an
        error. ``ctx.cancelled`` is the host's to fill in. Or ``OutcomeUnknown``, also where a
        try that is not the first did not begin."""

    def cancel(self, call_id: str) -> None:
        """Nobody wants the answer any more; the call may end sooner, or not."""

    async def gone(self, call_id: str) -> None:
        """Wait until nothing of a call runs any more: after a time-out a function still may."""


class LocalTools:
    """Calls functions of a registry: synchronous ones on threads, asynchronous ones on a loop of
    their own, so that none of them can hold up the bus."""

    def __init__(self, registry: ToolRegistry) -> None:
        self._tools = {tool.capability.name: tool for tool in registry}
        places = sum(tool.capability.limits.concurrency for tool in registry)
        self._threads = Threads(max(1, min(places, THREADS_MAX)))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="rookery-tools", daemon=True)
        self._thread.start()
        self._running: dict[str, _Running] = {}

    async def ready(self, name: str) -> None:
        """Always: they are in this process."""

    async def call(self, ctx: ToolCallContext, timeout_ms: int) -> CallOutcome:
        tool = self._tools.get(ctx.name)
        if tool is None:
            return CallOutcome(error=fault("UNKNOWN_TOOL", f"no function is called {ctx.name}"))
        running = _Running(tool, ctx, self._threads, self._loop)
        self._running[ctx.call_id] = running
        over = asyncio.wrap_future(running.over)
        over.add_done_callback(lambda _: self._forget(ctx.call_id, running))
        try:
            done, _ = await asyncio.wait({over}, timeout=timeout_ms / 1_000)
        finally:
            running.unwatched = not over.done()
        if done:
            return over.result()
        running.stop()
        text = f"{ctx.name} took longer than its {tool.capability.limits.timeout_ms} ms"
        return CallOutcome(error=fault("TIMEOUT_TOOL", text))

    def cancel(self, call_id: str) -> None:
        if (running := self._running.get(call_id)) is not None:
            running.stop()

    async def gone(self, call_id: str) -> None:
        if (running := self._running.get(call_id)) is not None:
            await asyncio.wait({asyncio.wrap_future(running.over)})

    def close(self, timeout_s: float) -> bool:
        """Stop what runs and wait for it. ``False`` if some function did not return in time; it
        does not keep the process from ending. Not to be called on the bus's loop."""
        left = list(self._running.values())
        for running in left:
            running.stop()
        late = wait([running.over for running in left], timeout_s).not_done
        self._threads.shutdown()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)
        return not late and not self._thread.is_alive()

    def _forget(self, call_id: str, running: _Running) -> None:
        if self._running.get(call_id) is running:
            del self._running[call_id]

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()


class _Running:
    """A call from its start until nothing of it runs any more."""

    def __init__(
        self,
        tool: RegisteredTool,
        ctx: ToolCallContext,
        threads: Threads,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._tool, self._threads, self._loop = tool, threads, loop
        self._unwanted = threading.Event()
        self._ctx = replace(ctx, cancelled=self._unwanted.is_set)
        self._seat = _Seat(threads, self._checked)
        self._task: asyncio.Task[Any] | None = None
        self.unwatched = False
        """Nobody waits for the outcome."""
        self.over: Future[CallOutcome] = asyncio.run_coroutine_threadsafe(self._run(), loop)
        """Never cancelled: it is done when the call is."""

    def stop(self) -> None:
        """Tell the function; on a coroutine, and on what has not begun, it is enforced."""
        self._unwanted.set()
        self._loop.call_soon_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        if self._tool.async_mode and self._task is not None:
            self._task.cancel()
        self._seat.leave()

    async def _run(self) -> CallOutcome:
        self._task = asyncio.current_task()
        outcome = await self._outcome()
        if self.unwatched:
            log.info("a late result was dropped", extra={"call_id": self._ctx.call_id})
        return outcome

    async def _outcome(self) -> CallOutcome:
        try:
            if self._unwanted.is_set():
                raise asyncio.CancelledError
            return CallOutcome(value=await self._value())
        except ToolError as error:
            return CallOutcome(error=fault(error.code, error.message))
        except CodedError as error:
            return CallOutcome(error=fault_of(error))
        except asyncio.CancelledError:
            return CallOutcome(error=fault("CANCELLED", f"{self._ctx.name} was cancelled"))
        except Exception as error:
            return CallOutcome(error=fault("TOOL_ERROR", _said(error)))

    async def _value(self) -> Any:
        if not self._tool.async_mode:
            return await self._tool.call_on(self._seat, self._ctx)
        result = await self._tool.call_on(None, self._ctx)
        self._task = None  # It has acted: from here on nothing is called off.
        return await self._loop.run_in_executor(self._threads, self._checked, result)

    def _checked(self, result: Any) -> Any:
        return self._tool.checks.response(result).value


class _Seat(Executor):
    """One function's way to a thread, as long as it can be called off; what it returns is looked
    at there, for each change of threads costs as much as a small function."""

    def __init__(self, threads: Threads, checked: Callable[[Any], Any]) -> None:
        self._threads, self._checked = threads, checked
        self._begun: Future[Any] | None = None

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._begun = self._threads.submit(lambda: self._checked(fn(*args, **kwargs)))
        return self._begun

    def leave(self) -> None:
        """Do not begin, if that has not happened."""
        if self._begun is not None:
            self._begun.cancel()


def _said(error: Exception) -> str:
    """Type and text; an exception may fail at telling its own."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
