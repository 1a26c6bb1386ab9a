"""Calls that go on as tasks of a server: how they begin, and how a node follows one to its end.

Tasks are of the protocol of 2025-11-25. The newer one leaves them to an extension, for which the
SDK has no types yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

import anyio
import mcp_types as types
from mcp.client import ClientSession
from mcp.shared.exceptions import MCPError

from rookery.actors.tools.hosts import OutcomeUnknown
from rookery.bus.ports import Backoff
from rookery.ops.mcp_client.message_stream import CREATED_TASK
from rookery.schemas.errors import Failed, Refused

__all__ = ["AskServer", "FollowedTask", "begin_task", "serves_tasks"]

POLL_S_MIN, POLL_S_MAX = 0.2, 30.0
"""Between two questions; a server may say how often within these."""
ERROR_MAX: Final = 500
TASK_ID_MAX: Final = 256
R = TypeVar("R", bound=types.Result)


class AskServer(Protocol):
    """Sends one request."""

    async def __call__(self, request: types.Request[Any, Any], kind: type[R], /) -> R: ...


def serves_tasks(session: ClientSession) -> bool:
    """Whether calls of the server's tools may go on as tasks."""
    capabilities = session.server_capabilities
    tasks = None if capabilities is None else capabilities.tasks
    requests = None if tasks is None else tasks.requests
    tools = None if requests is None else requests.tools
    return tools is not None and tools.call is not None


async def begin_task(
    session: ClientSession, name: str, arguments: Mapping[str, Any], ttl_ms: int
) -> str | types.CallToolResult:
    """Call a tool as a task, which the server keeps for ``ttl_ms``; its id, or the result of a
    server that has ended the call already."""
    params = types.CallToolRequestParams(
        name=name, arguments=dict(arguments), task=types.TaskMetadata(ttl=ttl_ms)
    )
    answer = await session.send_request(types.CallToolRequest(params=params), types.CallToolResult)
    created: object = dict(answer.meta or {}).get(CREATED_TASK)
    if created is None:
        return answer
    task = types.Task.model_validate(created, by_name=False).task_id
    if len(task) > TASK_ID_MAX:
        raise OutcomeUnknown(f"the server gave the task an id of {len(task)} characters")
    return task


class FollowedTask:
    """One task that this node follows."""

    def __init__(self, ask: AskServer, task: str, deadline_s: float) -> None:
        """``ask`` raises ``MCPError`` only for answers of the server. ``deadline_s``: by the clock
        of the loop; the task is cancelled then."""
        self._ask, self._task, self._deadline_s = ask, task, deadline_s
        self._ended = anyio.Event()

    def end(self) -> None:
        """Nothing waits for the task any more."""
        self._ended.set()

    async def result(self) -> types.CallToolResult:
        """Its result, as soon as there is one. Raises ``Failed`` for a task that ends without one,
        and ``OutcomeUnknown`` if the server does not know it."""
        backoff = Backoff(POLL_S_MIN, POLL_S_MAX)
        while True:
            state = await self._state()
            match state.status:
                case "completed" | "failed":
                    return await self._payload()
                case "cancelled":
                    said = f": {state.status_message}" if state.status_message else ""
                    raise Failed("CANCELLED", f"the server cancelled the task{said}"[:ERROR_MAX])
                case "input_required":
                    await self._cancel()
                    raise Failed(
                        "UNSUPPORTED_FEATURE",
                        "the server asks for more input for the task, and a call has none",
                    )
            pause_s = backoff.next_s()
            if state.poll_interval is not None:
                pause_s = min(max(state.poll_interval / 1_000, POLL_S_MIN), POLL_S_MAX)
            left_s = max(0.0, self._deadline_s - anyio.current_time())
            with anyio.move_on_after(min(pause_s, left_s)):
                await self._ended.wait()
            if self._ended.is_set():
                await self._cancel()
                raise Failed("CANCELLED", "the task was cancelled, and its server may have acted")
            if not left_s:
                await self._cancel()
                raise Failed("TIMEOUT_TOOL", "the task took longer than its call may take")

    async def _state(self) -> types.GetTaskResult:
        params = types.GetTaskRequestParams(task_id=self._task)
        try:
            return await self._ask(types.GetTaskRequest(params=params), types.GetTaskResult)
        except MCPError as error:
            said = error.error.message[:ERROR_MAX]
            raise OutcomeUnknown(
                f"the server does not know the task {self._task}: {said}"
            ) from None

    async def _payload(self) -> types.CallToolResult:
        params = types.GetTaskPayloadRequestParams(task_id=self._task)
        try:
            return await self._ask(types.GetTaskPayloadRequest(params=params), types.CallToolResult)
        except MCPError as error:  # What the call itself would have been answered.
            raise Refused("TOOL_ERROR", error.error.message[:ERROR_MAX]) from None

    async def _cancel(self) -> None:
        """Ask the server to end it, which it may ignore."""
        params = types.CancelTaskRequestParams(task_id=self._task)
        with suppress(MCPError, Failed):
            await self._ask(types.CancelTaskRequest(params=params), types.CancelTaskResult)
