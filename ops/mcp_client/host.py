"""The host of a server's tools: makes calls whose intent is committed, and says what became of
them. Its face is used on the bus's loop; a call itself runs on the loop of the connections."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import ValidationError

from rookery.actors.tools import ToolCallContext, ToolCredential
from rookery.actors.tools.hosts import NotCalled, OutcomeUnknown, PastAttempt, TaskCreated
from rookery.actors.tools.validation import fault, fault_of
from rookery.bus.event_loop import LoopThread
from rookery.bus.ports import Blobs, wait_first
from rookery.ops.mcp_client.connection import LiveSession, McpTask, error_words
from rookery.ops.mcp_client.http_transport import CURRENT_REQUEST, RequestScope
from rookery.ops.mcp_client.message_stream import ServerFault
from rookery.ops.mcp_client.results import CallResult, call_result, error_text, scrub_result
from rookery.ops.mcp_client.server_tasks import (
    CALL_RESULT,
    CreatedTask,
    FollowedTask,
    begin_task,
    read_task_id,
)
from rookery.ops.mcp_client.server_tools import ServerTool
from rookery.schemas.calls import CallOutcome
from rookery.schemas.errors import CodedError, Failed, Refused

__all__ = ["McpToolHost"]

LATE_S: Final = 0.25
"""The loop of the connections has so long to end a call by itself."""
LARGE_BYTES: Final = 64 << 10
"""Larger results are checked on a thread."""
PART_BYTES: Final = 32
"""About what a part of a structured result counts, beside its text."""
_BROKEN: Final = (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError)
TASK_BEGUN_S: Final = 60.0
TASK_KEPT_MS: Final = 3_600_000
"""How long a server shall keep the result of a task after the time of its call."""
_GATEWAY_ERROR: Final = "Server returned an error response"
"""What the SDK says of a response that is no message of the server."""


T = TypeVar("T")
R = TypeVar("R", bound=types.Result)


class _ServerCall:
    """A call from its start to its outcome."""

    def __init__(self, ctx: ToolCallContext, timeout_ms: int, may_act: Callable[[], bool]) -> None:
        self.ctx, self.timeout_ms, self.may_act = ctx, timeout_ms, may_act
        self.request = RequestScope(ctx.credential)
        self.scope: anyio.CancelScope | None = None
        self.is_sent = self.is_cancelled = False
        self.task: asyncio.Task[CallResult] | None = None

    def cancel(self) -> None:
        self.is_cancelled = True
        if self.scope is not None:
            self.scope.cancel()

    def not_called(self, code: str, why: str) -> Failed:
        """For a request that the server did not get. ``OutcomeUnknown`` after the first attempt,
        which may have reached it."""
        if self.ctx.attempt > 1:
            raise OutcomeUnknown(why)
        return Failed(code, f"{self.ctx.name} was not called: {why}")


class McpToolHost:
    """Implements the port ``ToolHost``."""

    def __init__(self, task: McpTask, thread: LoopThread, blobs: Blobs) -> None:
        self.surface = task.surface
        self._task, self._thread, self._blobs = task, thread, blobs
        self._calls: dict[str, _ServerCall] = {}
        self._followed: dict[str, FollowedTask] = {}
        """Tasks, by the call that goes on as one."""
        task.on_task_change = self._change_task

    # --- port ToolHost ---

    async def wait_ready(self, name: str) -> None:
        ready = asyncio.run_coroutine_threadsafe(self._task.wait_tool(name), self._thread.loop)
        await asyncio.wrap_future(ready)

    def call_quickly(self, ctx: ToolCallContext, may_act: Callable[[], bool]) -> CallOutcome | None:
        """None: a server is never quick."""
        del ctx, may_act
        return None

    async def call(
        self, ctx: ToolCallContext, timeout_ms: int, may_act: Callable[[], bool] = lambda: True
    ) -> CallOutcome:
        running = self._calls[ctx.call_id] = _ServerCall(ctx, timeout_ms, may_act)
        result: asyncio.Future[CallResult] = asyncio.get_running_loop().create_future()
        self._thread.call_soon(self._begin, running, result)
        try:
            if not await wait_first((result,), timeout_ms / 1_000 + LATE_S):
                self._thread.call_soon(running.cancel)
                raise _timeout(running)
            return await self._outcome(result.result())
        except CodedError as error:
            return self._failed(error, () if ctx.credential is None else (ctx.credential,))
        finally:
            if not result.done():
                result.add_done_callback(_drop)
            del self._calls[ctx.call_id]

    def cancel(self, call_id: str) -> None:
        if (running := self._calls.get(call_id)) is not None:
            self._thread.call_soon(running.cancel)
        if (followed := self._followed.get(call_id)) is not None:
            self._thread.call_soon(followed.end)

    async def wait_finished(self, call_id: str) -> None:
        """Returns at once: a call that outlives its time occupies its server, and nothing here."""

    async def query_outcome(self, past: PastAttempt) -> CallOutcome:
        del past
        raise OutcomeUnknown(f"the server of {self.surface} answers a call only once")

    async def follow_task(self, past: PastAttempt, task: str) -> CallOutcome:
        loop = self._thread.loop
        deadline_s = loop.time() + past.left_ms / 1_000
        followed = self._followed[past.call_id] = FollowedTask(self._ask, task, deadline_s)
        work = asyncio.run_coroutine_threadsafe(self._follow(past, followed), loop)
        try:
            return await self._outcome(await asyncio.wrap_future(work))
        except CodedError as error:
            if error.code == "SURFACE_UNAVAILABLE":
                raise
            return self._failed(error, past.credentials)
        finally:
            del self._followed[past.call_id]

    async def _outcome(self, found: CallResult) -> CallOutcome:
        for content in found.contents:
            await self._blobs.put(content.data)
        return CallOutcome(value=found.value)

    def _failed(self, error: CodedError, credentials: Iterable[ToolCredential]) -> CallOutcome:
        wrong = fault_of(error)
        text = self._task.access.scrub(wrong.message)
        for credential in credentials:
            text = credential.scrubber.scrub_text(text)
        return CallOutcome(error=fault(wrong.code, text))

    # --- on the loop of the connections ---

    def _begin(self, running: _ServerCall, result: asyncio.Future[CallResult]) -> None:
        """Perform the call; ``result`` is a future of the bus's loop. It costs half of what
        asyncio's own way between two threads does."""
        running.task = asyncio.create_task(self._perform(running))
        running.task.add_done_callback(partial(_deliver_result, result))

    async def _perform(self, running: _ServerCall) -> CallResult:
        """The checked result of a call. Raises coded errors and those of the port."""
        deadline_s = anyio.current_time() + running.timeout_ms / 1_000
        with anyio.CancelScope(deadline=deadline_s) as running.scope:
            if running.is_cancelled:
                running.scope.cancel()
            async with self._task.borrow(running.ctx.credential) as live:
                return await self._call_tool(running, live)
        if not running.is_cancelled and running.is_sent:
            raise _timeout(running)
        if not running.is_cancelled:
            why = f"its server was not ready within {running.timeout_ms} ms"
            raise running.not_called("SURFACE_UNAVAILABLE", why)
        may_act = ", and its server may have acted" if running.is_sent else ""
        raise Failed("CANCELLED", f"{running.ctx.name} was cancelled{may_act}")

    async def _call_tool(self, running: _ServerCall, live: LiveSession) -> CallResult:
        ctx = running.ctx
        tool = await self._current_tool(running, live)
        arguments = tool.tool.checks.bind(ctx.args, ctx.kwargs)
        if not running.may_act():
            raise NotCalled(ctx.name)
        answer: types.CallToolResult | types.InputRequiredResult | CreatedTask
        if tool.as_task:
            answer = await self._begin_task(running, live, tool, arguments)
        else:
            answer = await self._request(running, live, tool.name, arguments)
        if isinstance(answer, types.InputRequiredResult):
            raise Failed(
                "UNSUPPORTED_FEATURE",
                f"{ctx.name}: its server asks for more input before it acts, and a call has none",
            )
        if isinstance(answer, CreatedTask):
            if not live.creates_tasks:
                text = f"{ctx.name}: its server began a task, and has not said that it does"
                raise Failed("INVALID_RESULT", text)
            raise TaskCreated(read_task_id(answer.task_id), tool.task_ms)
        given = () if ctx.credential is None else (ctx.credential,)
        return await self._checked(tool, answer, given)

    async def _follow(self, past: PastAttempt, followed: FollowedTask) -> CallResult:
        """The checked result of a task."""
        answer = await followed.result()
        live = self._task.live
        tool = None if live is None else live.listing.tools.get(past.name)
        if tool is None or past.schema_digest not in ("", tool.tool.available.schema_digest):
            why = "has no such tool any more, or another one, so its result cannot be checked"
            raise Failed("TOOL_CHANGED", f"{past.name}: the server of {self.surface} {why}")
        return await self._checked(tool, answer, past.credentials)

    def _change_task(self, task: str) -> None:
        for followed in tuple(self._followed.values()):
            followed.change(task)

    async def _ask(self, request: types.Request[Any, Any], kind: type[R], /) -> R:
        """Ask about a task. ``Failed`` if the server cannot be reached now."""
        scope = RequestScope()
        CURRENT_REQUEST.set(scope)
        try:
            async with self._task.borrow(None) as live:
                return await live.session.send_request(request, kind)
        except MCPError as error:
            if scope.status == 404:
                self._task.reconnect("has closed the session")
                raise Failed("SURFACE_UNAVAILABLE", error.error.message) from None
            if reason := scope.not_sent or _unknown_reason(scope, error):
                raise Failed("SURFACE_UNAVAILABLE", reason) from None
            raise
        except ValidationError:
            raise OutcomeUnknown("the server's answer is none of the protocol") from None
        except _BROKEN as error:
            raise Failed("SURFACE_UNAVAILABLE", error_words(error)) from None

    async def _current_tool(self, running: _ServerCall, live: LiveSession) -> ServerTool:
        """The tool as the server has it now. It must be what was recorded, and approved."""
        ctx = running.ctx
        tool = live.listing.tools.get(ctx.name)
        if tool is not None and tool.tool.requires_approval:
            try:
                await self._task.list_again(live)
            except (MCPError, ServerFault, ValidationError, *_BROKEN) as error:
                why = f"its server does not list its tools: {error_words(error)}"
                raise running.not_called("SURFACE_UNAVAILABLE", why) from None
            tool = live.listing.tools.get(ctx.name)
        if tool is None:
            raise Failed("UNKNOWN_TOOL", f"the server of {self.surface} has no {ctx.name} now")
        if ctx.schema_digest not in ("", tool.tool.available.schema_digest):
            raise Failed(
                "TOOL_CHANGED",
                f"the server of {self.surface} describes {ctx.name} in other words than when the "
                "call was recorded, so it was not called",
                hint=f"rookery surfaces show {self.surface}; the next run sees the new tool",
            )
        return tool

    async def _request(
        self, running: _ServerCall, live: LiveSession, name: str, arguments: dict[str, Any]
    ) -> types.CallToolResult | types.InputRequiredResult | CreatedTask:
        params = types.CallToolRequestParams(name=name, arguments=arguments)
        request = types.CallToolRequest(params=params)
        sent = live.session.send_request(
            request, CALL_RESULT, progress_callback=partial(self._log_progress, running.ctx)
        )
        return await self._answer(running, sent)

    async def _begin_task(
        self, running: _ServerCall, live: LiveSession, tool: ServerTool, arguments: dict[str, Any]
    ) -> types.CallToolResult:
        """Raises ``TaskCreated``, unless the server has ended the call already."""
        ttl_ms = running.timeout_ms + TASK_KEPT_MS
        sent = begin_task(live.session, tool.name, arguments, ttl_ms)
        with anyio.move_on_after(TASK_BEGUN_S) as waiting:
            begun = await self._answer(running, sent)
        if waiting.cancelled_caught:
            raise OutcomeUnknown(f"its server did not begin the task within {TASK_BEGUN_S:g} s")
        if isinstance(begun, str):
            raise TaskCreated(begun)
        return begun

    async def _answer(self, running: _ServerCall, sent: Awaitable[T]) -> T:
        """What a server answers to a request of a call."""
        CURRENT_REQUEST.set(running.request)
        running.is_sent = True
        try:
            return await sent
        except MCPError as error:
            raise self._failure(running, error) from None
        except ValidationError:
            raise Failed(
                "INVALID_RESULT", f"{running.ctx.name}: its server sent no result of the protocol"
            ) from None
        except _BROKEN as error:
            raise OutcomeUnknown(f"the connection broke: {error_words(error)}") from None

    def _failure(self, running: _ServerCall, error: MCPError) -> Exception:
        """What an error means for a call: it is the server's own answer, or the request did not
        arrive, or the answer did not."""
        request, message = running.request, error.error.message
        if request.not_sent:
            return running.not_called("SURFACE_UNAVAILABLE", request.not_sent)
        if reason := _unknown_reason(request, error):
            return OutcomeUnknown(f"{self.surface}: {reason}")
        if request.status == 404:  # A session that the server has closed, or lost in a restart.
            self._task.reconnect("has closed the session")
            return running.not_called("SURFACE_UNAVAILABLE", message)
        status = f" (HTTP status {request.status})" if request.status >= 400 else ""
        return Refused("TOOL_ERROR", f"{running.ctx.name}: {message}{status}")

    async def _log_progress(
        self, ctx: ToolCallContext, done: float, total: float | None, message: str | None
    ) -> None:
        """Nothing waits for it, but operators see how far a long call is."""
        of_all = "" if total is None else f" of {total:g}"
        text = f"rookery: {ctx.name} ({ctx.call_id}): {done:g}{of_all} {(message or '')[:200]}"
        self._task.access.log.add(text)

    async def _checked(
        self,
        tool: ServerTool,
        answer: types.CallToolResult,
        credentials: Iterable[ToolCredential],
    ) -> CallResult:
        """The result as its schema says, without credentials."""
        if answer.is_error:
            raise Refused("TOOL_ERROR", error_text(answer))
        scrubbers = self._task.access.scrubbers + tuple(one.scrubber for one in credentials)

        def check() -> CallResult:
            found = call_result(answer, has_schema=tool.has_output_schema)
            found = scrub_result(found, scrubbers)
            checked = tool.tool.checks.check_result(found.value).value
            return found._replace(value=checked).joined()

        if _is_large(answer):
            return await asyncio.to_thread(check)
        return check()


def _unknown_reason(request: RequestScope, error: MCPError) -> str:
    """Why a server may have acted although there is no answer of it; empty if there is one."""
    if request.lost:
        return f"the answer did not arrive: {request.lost}"
    match error.error.code:
        case types.CONNECTION_CLOSED:
            return "the connection ended during the call"
        case types.PARSE_ERROR:
            return "the answer is no message of the protocol"
        case _ if request.status >= 500 and error.error.message == _GATEWAY_ERROR:
            return f"the server answered with HTTP status {request.status}"
    return ""


def _is_large(answer: types.CallToolResult) -> bool:
    """Whether its check may take so long that other calls notice."""
    texts = (getattr(block, "text", "") or getattr(block, "data", "") for block in answer.content)
    left = LARGE_BYTES - sum(map(len, texts))
    pending = [answer.structured_content]
    while pending and left > 0:
        part = pending.pop()
        left -= len(part) if isinstance(part, str) else PART_BYTES
        if isinstance(part, dict):
            pending += part.values()
        elif isinstance(part, list):
            pending += part
    return left <= 0


def _timeout(running: _ServerCall) -> Failed:
    text = f"{running.ctx.name} took longer than its {running.timeout_ms} ms"
    return Failed("TIMEOUT_TOOL", text)


def _deliver_result(result: asyncio.Future[CallResult], ended: asyncio.Task[CallResult]) -> None:
    with suppress(RuntimeError):  # The node has stopped, and its loop is closed.
        result.get_loop().call_soon_threadsafe(_settle, result, ended)


def _settle(result: asyncio.Future[CallResult], ended: asyncio.Task[CallResult]) -> None:
    if ended.cancelled():
        result.cancel()
    elif (error := ended.exception()) is not None:
        result.set_exception(error)
    else:
        result.set_result(ended.result())


def _drop(late: asyncio.Future[CallResult]) -> None:
    """No call waits for it any more."""
    if not late.cancelled():
        late.exception()
