"""The local tool host: calls functions of this process, on the loop, a thread or a pool of them."""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from time import perf_counter
from typing import Any, Final

from msgspec import UNSET
from msgspec.structs import replace

from rookery.actors.daemon_threads import DaemonThreadPool
from rookery.actors.protection.scrubber import scrubbed_output
from rookery.actors.tools.authoring.registry import (
    RegisteredTool,
    ToolCallContext,
    ToolError,
    ToolRegistry,
)
from rookery.actors.tools.hosts.host import NotCalled, OutcomeUnknown, PastAttempt, always_allowed
from rookery.actors.tools.validation.capability_checks import fault, fault_of, logged_fault
from rookery.bus.ports import wait_first
from rookery.schemas.calls import CallOutcome
from rookery.schemas.errors import CodedError
from rookery.schemas.surfaces import LOCAL

__all__ = ["LocalToolHost"]

log = logging.getLogger(__name__)


THREADS_MAX: Final = 256
HELD_MS_MAX: Final = 20
"""A quick tool that takes longer is named in the log."""


class LocalToolHost:
    """Calls the functions of a registry: synchronous ones on threads, asynchronous ones on a loop
    of their own, so that none can block the bus. Its own loop calls a quick one."""

    def __init__(self, registry: ToolRegistry, surface: str = LOCAL) -> None:
        self.surface = surface
        self._tools = {tool.capability.name: tool for tool in registry}
        places = sum(tool.capability.limits.concurrency for tool in registry)
        self._pool = DaemonThreadPool(max(1, min(places, THREADS_MAX)))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="rookery-tools", daemon=True)
        self._thread.start()
        self._running: dict[str, _RunningCall] = {}

    @property
    def inline(self) -> frozenset[str]:
        """The tools that its caller's loop calls itself, one call at a time."""
        return frozenset(name for name, tool in self._tools.items() if tool.is_inline)

    async def wait_ready(self, name: str) -> None:
        """Returns at once: the functions are in this process."""

    async def call(
        self, ctx: ToolCallContext, timeout_ms: int, may_act: Callable[[], bool] = always_allowed
    ) -> CallOutcome:
        tool = self._tools.get(ctx.name)
        if tool is None:
            return CallOutcome(error=fault("UNKNOWN_TOOL", f"no function is called {ctx.name}"))
        if ctx.credential is None and tool.capability.binding is not UNSET:
            text = f"the call of {ctx.name} came without the credential {tool.capability.binding}"
            return CallOutcome(error=fault("LEASE_UNAVAILABLE", text))
        if (outcome := self.call_quickly(ctx, may_act)) is not None:
            return outcome
        running = self._start(tool, ctx, may_act)
        self._running[ctx.call_id] = running
        over = asyncio.wrap_future(running.finished)
        over.add_done_callback(lambda _: self._remove(ctx.call_id, running))
        try:
            await wait_first((over,), timeout_ms / 1_000)
        finally:
            running.is_unobserved = not over.done()
        if over.done():
            return over.result()
        running.stop()
        text = f"{ctx.name} took longer than its {tool.capability.limits.timeout_ms} ms"
        return CallOutcome(error=fault("TIMEOUT_TOOL", text))

    def call_quickly(self, ctx: ToolCallContext, may_act: Callable[[], bool]) -> CallOutcome | None:
        tool = self._tools.get(ctx.name)
        if tool is None or not tool.is_inline:
            return None
        began_s = perf_counter()
        outcome = _act(tool, ctx, may_act)
        held_ms = round((perf_counter() - began_s) * 1e3)
        if held_ms > HELD_MS_MAX:
            log.warning(
                "a quick tool held up its node: declare it without quick=True",
                extra={"tool": ctx.name, "ms": held_ms},
            )
        return outcome

    def cancel(self, call_id: str) -> None:
        if (running := self._running.get(call_id)) is not None:
            running.stop()

    async def follow_task(self, past: PastAttempt, task: str) -> CallOutcome:
        del past, task
        raise OutcomeUnknown(f"{self.surface} has no tasks")

    async def query_outcome(self, past: PastAttempt) -> CallOutcome:
        del past  # Only the process that called the function knows its outcome.
        raise OutcomeUnknown

    async def wait_finished(self, call_id: str) -> None:
        if (running := self._running.get(call_id)) is not None:
            await asyncio.wait({asyncio.wrap_future(running.finished)})

    def close(self, timeout_s: float) -> bool:
        """Stop running functions and wait for them. ``False`` if a function did not return in time;
        it does not prevent the process from ending. Must not be called on the bus loop."""
        left = list(self._running.values())
        for running in left:
            running.stop()
        late = wait([running.finished for running in left], timeout_s).not_done
        self._pool.shutdown()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout_s)
        return not late and not self._thread.is_alive()

    def _start(
        self, tool: RegisteredTool, ctx: ToolCallContext, may_act: Callable[[], bool]
    ) -> _RunningCall:
        if tool.quick:
            return _QuickCoroutineCall(tool, ctx, may_act)
        if tool.async_mode:
            return _CoroutineCall(tool, ctx, may_act, self._pool, self._loop)
        return _ThreadCall(tool, ctx, may_act, self._pool)

    def _remove(self, call_id: str, running: _RunningCall) -> None:
        if self._running.get(call_id) is running:
            del self._running[call_id]

    def _run_loop(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()


class _RunningCall(ABC):
    """A call from its start until nothing of it runs any more."""

    finished: Future[CallOutcome]
    """Done when the call is; never cancelled."""

    def __init__(
        self, tool: RegisteredTool, ctx: ToolCallContext, may_act: Callable[[], bool]
    ) -> None:
        self._tool, self._may_act = tool, may_act
        self._cancel_requested = False
        self._ctx = replace(ctx, cancelled=lambda: self._cancel_requested)
        self.is_unobserved = False
        """The outcome is no longer needed."""

    @abstractmethod
    def stop(self) -> None:
        """Signal the cancellation; a coroutine and a call that has not begun are cancelled."""

    def _require_may_act(self) -> None:
        """Checked right before the function is called, because this process may have been
        suspended."""
        if not self._may_act():
            raise NotCalled(self._ctx.name)

    def _finish(self, outcome: CallOutcome) -> None:
        self._log_if_late()
        self.finished.set_result(outcome)

    def _checked_outcome(self, result: Any) -> CallOutcome:
        return _checked_outcome(self._tool, self._ctx, result)

    def _failed_outcome(self, error: BaseException) -> CallOutcome:
        return _failed_outcome(self._tool, self._ctx, error)

    def _log_if_late(self) -> None:
        if self.is_unobserved:
            log.info("late result dropped", extra={"call_id": self._ctx.call_id})


class _ThreadCall(_RunningCall):
    """A call of a blocking function. The same thread checks the result, because a change of threads
    costs as much as a small function."""

    def __init__(
        self,
        tool: RegisteredTool,
        ctx: ToolCallContext,
        may_act: Callable[[], bool],
        threads: DaemonThreadPool,
    ) -> None:
        super().__init__(tool, ctx, may_act)
        self.finished = Future()
        self._future = threads.submit(copy_context().run, self._run)
        self._future.add_done_callback(self._finish_if_not_started)

    def stop(self) -> None:
        self._cancel_requested = True
        self._future.cancel()

    def _run(self) -> None:
        try:
            outcome = _act(self._tool, self._ctx, self._may_act)
        except NotCalled as error:
            self.finished.set_exception(error)
        else:
            self._finish(outcome)

    def _finish_if_not_started(self, begun: Future[None]) -> None:
        if begun.cancelled():
            self._finish(self._failed_outcome(asyncio.CancelledError()))


class _QuickCoroutineCall(_RunningCall):
    """A call of a coroutine function that never blocks, on the event loop of the caller."""

    def __init__(
        self, tool: RegisteredTool, ctx: ToolCallContext, may_act: Callable[[], bool]
    ) -> None:
        super().__init__(tool, ctx, may_act)
        self.finished = Future()
        self._task: asyncio.Task[Any] | None = None
        self._started = asyncio.get_running_loop().create_task(self._run())

    def stop(self) -> None:
        self._cancel_requested = True
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        self._task = asyncio.current_task()
        try:
            if self._cancel_requested:
                raise asyncio.CancelledError
            self._require_may_act()
            with _scrubbed(self._ctx):
                result = await self._tool.call(self._ctx)
            self._task = None  # The function has acted: cancellation ends here.
            self._finish(self._checked_outcome(result))
        except NotCalled as error:
            self.finished.set_exception(error)
        except BaseException as error:
            self._finish(self._failed_outcome(error))


class _CoroutineCall(_RunningCall):
    """A call of a coroutine function; a thread checks the result, because that may take long."""

    def __init__(
        self,
        tool: RegisteredTool,
        ctx: ToolCallContext,
        may_act: Callable[[], bool],
        threads: DaemonThreadPool,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(tool, ctx, may_act)
        self._pool, self._loop = threads, loop
        self._task: asyncio.Task[Any] | None = None
        self.finished = asyncio.run_coroutine_threadsafe(self._run(), loop)

    def stop(self) -> None:
        self._cancel_requested = True
        self._loop.call_soon_threadsafe(self._cancel_task)

    def _cancel_task(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> CallOutcome:
        self._task = asyncio.current_task()
        try:
            if self._cancel_requested:
                raise asyncio.CancelledError
            self._require_may_act()
            with _scrubbed(self._ctx):
                result = await self._tool.call(self._ctx)
            self._task = None  # The function has acted: cancellation ends here.
            outcome = await self._loop.run_in_executor(self._pool, self._checked_outcome, result)
        except NotCalled:
            raise
        except BaseException as error:
            outcome = self._failed_outcome(error)
        self._log_if_late()
        return outcome


def _act(tool: RegisteredTool, ctx: ToolCallContext, may_act: Callable[[], bool]) -> CallOutcome:
    """Call a synchronous function on this thread. ``may_act`` is checked right before, because this
    process may have been suspended; if it is false this raises ``NotCalled``."""
    if not may_act():
        raise NotCalled(ctx.name)
    try:
        with _scrubbed(ctx):
            result = tool.act(ctx)
        return _checked_outcome(tool, ctx, result)
    except BaseException as error:
        return _failed_outcome(tool, ctx, error)


_NOTHING: Final = nullcontext()


def _scrubbed(ctx: ToolCallContext) -> AbstractContextManager[None]:
    """What the function prints and logs has no credential."""
    return _NOTHING if ctx.credential is None else scrubbed_output(ctx.credential.scrubber)


def _checked_outcome(tool: RegisteredTool, ctx: ToolCallContext, result: Any) -> CallOutcome:
    if ctx.credential is not None:
        result = ctx.credential.scrubber.scrub(result)
    try:
        return CallOutcome(value=tool.checks.check_result(result).value)
    except CodedError as error:
        return CallOutcome(error=fault_of(error))


def _failed_outcome(
    tool: RegisteredTool, ctx: ToolCallContext, error: BaseException
) -> CallOutcome:
    """The outcome for any exception."""
    if isinstance(error, ToolError):
        code, message = error.code, error.message
        if ctx.credential is not None:
            scrub = ctx.credential.scrubber.scrub_text
            code, message = scrub(str(code)), scrub(str(message))
        return CallOutcome(error=fault(code, message))
    if isinstance(error, asyncio.CancelledError):
        return CallOutcome(error=fault("CANCELLED", f"{ctx.name} was cancelled"))
    sensitive = bool(tool.checks.sensitive) or ctx.credential is not None
    return CallOutcome(error=logged_fault(ctx.name, ctx.call_id, error, sensitive=sensitive))
