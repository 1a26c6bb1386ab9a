"""Calls that go on as tasks of a server: how they begin, and how a node follows one to its end.

In the protocol of 2025-11-25 the client asks for a task, and for its result when it has ended. In
the newer one tasks are an extension: the server decides for each call, and the state of a task has
its result. The SDK lets a client declare an extension, and has no types for this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol, TypeVar

import anyio
import mcp_types as types
from mcp.client import (
    ClaimContext,
    Client,
    ClientExtension,
    ClientSession,
    NotificationBinding,
    ResultClaim,
)
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import Discriminator, Tag, TypeAdapter, ValidationError

from rookery.actors.tools.hosts import OutcomeUnknown
from rookery.bus.ports import Backoff
from rookery.ops.mcp_client.message_stream import CREATED_TASK
from rookery.schemas.errors import Failed, Refused

__all__ = [
    "CALL_RESULT",
    "AskServer",
    "CreatedTask",
    "FollowedTask",
    "TaskExtension",
    "begin_task",
    "creates_tasks",
    "read_task_id",
    "serves_tasks",
]

EXTENSION: Final = "io.modelcontextprotocol/tasks"
CHANGED: Final = "notifications/tasks/status"
POLL_S_MIN, POLL_S_MAX = 0.2, 30.0
"""Between two questions; a server may say how often within these."""
ERROR_MAX: Final = 500
TASK_ID_MAX: Final = 256
R = TypeVar("R", bound=types.Result)


class CreatedTask(types.Result):
    """The answer to a call which its server lets go on as a task, by the extension."""

    result_type: Literal["task"] = "task"
    task_id: str


def _kind(result: Any) -> str:
    is_task = isinstance(result, dict) and result.get("resultType") == "task"
    return "task" if is_task else "result"


CALL_RESULT: Final[TypeAdapter[types.CallToolResult | types.InputRequiredResult | CreatedTask]] = (
    TypeAdapter(
        Annotated[
            Annotated[types.CallToolResult | types.InputRequiredResult, Tag("result")]
            | Annotated[CreatedTask, Tag("task")],
            Discriminator(_kind),
        ]
    )
)
"""What a server may answer to a call."""


class TaskChanged(types.NotificationParams):
    """Of which a node reads no more: it asks for the state."""

    task_id: str


class TaskExtension(ClientExtension):
    """Says to servers that their calls may go on as tasks."""

    identifier = EXTENSION

    def __init__(self, on_change: Callable[[str], None]) -> None:
        """``on_change`` is called with the id of a task that its server says has changed, which
        servers of the older protocol may do; those of the extension do it if they are asked to."""
        self._on_change = on_change

    def notifications(self) -> tuple[NotificationBinding[TaskChanged]]:
        return (NotificationBinding(method=CHANGED, params_type=TaskChanged, handler=self._said),)

    async def _said(self, changed: TaskChanged) -> None:
        self._on_change(changed.task_id)

    def claims(self) -> tuple[ResultClaim[CreatedTask]]:
        return (ResultClaim(result_type="task", model=CreatedTask, resolve=self._resolve),)

    async def _resolve(self, created: CreatedTask, ctx: ClaimContext) -> types.CallToolResult:
        """Of the SDK's own calls, which this client does not use."""
        del ctx
        raise OutcomeUnknown(f"the call went on as the task {created.task_id}")


class TaskState(types.Result):
    """The state of a task, in either protocol."""

    status: str
    status_message: str | None = None
    poll_interval: int | None = None
    poll_interval_ms: int | None = None
    """The extension's word for it."""
    result: dict[str, Any] | None = None
    error: dict[str, Any] | None = None

    @property
    def interval_s(self) -> float | None:
        given = self.poll_interval if self.poll_interval_ms is None else self.poll_interval_ms
        return None if given is None else given / 1_000


class _GetTask(types.GetTaskRequest):
    name_param: ClassVar[str | None] = "taskId"
    """The extension wants it in a header."""


class _CancelTask(types.CancelTaskRequest):
    name_param: ClassVar[str | None] = "taskId"


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


def creates_tasks(client: Client) -> bool:
    """Whether the server may let any call go on as a task."""
    extensions = client.server_capabilities.extensions or {}
    return client.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in extensions


def read_task_id(task: str) -> str:
    """The id that a server gave to a task; it has begun, whatever its id."""
    if len(task) > TASK_ID_MAX:
        raise OutcomeUnknown(f"the server gave the task an id of {len(task)} characters")
    return task


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
    return read_task_id(types.Task.model_validate(created, by_name=False).task_id)


class FollowedTask:
    """One task that this node follows."""

    def __init__(self, ask: AskServer, task: str, deadline_s: float) -> None:
        """``ask`` raises ``MCPError`` only for answers of the server. ``deadline_s``: by the clock
        of the loop; the task is cancelled then."""
        self._ask, self._task, self._deadline_s = ask, task, deadline_s
        self._ended, self._changed = anyio.Event(), anyio.Event()

    def end(self) -> None:
        """Nothing waits for the task any more."""
        self._ended.set()
        self._changed.set()

    def change(self, task: str) -> None:
        """A task has changed."""
        if task == self._task:
            self._changed.set()

    async def result(self) -> types.CallToolResult:
        """Its result, as soon as there is one. Raises ``Failed`` for a task that ends without one,
        and ``OutcomeUnknown`` if the server does not know it."""
        backoff = Backoff(POLL_S_MIN, POLL_S_MAX)
        while True:
            state = await self._state()
            match state.status:
                case "completed" | "failed":
                    return await self._payload(state)
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
            if state.interval_s is not None:
                pause_s = min(max(state.interval_s, POLL_S_MIN), POLL_S_MAX)
            left_s = max(0.0, self._deadline_s - anyio.current_time())
            await self._pause(min(pause_s, left_s))
            if self._ended.is_set():
                await self._cancel()
                raise Failed("CANCELLED", "the task was cancelled, and its server may have acted")
            if not left_s:
                await self._cancel()
                raise Failed("TIMEOUT_TOOL", "the task took longer than its call may take")

    async def _pause(self, pause_s: float) -> None:
        """Wait before the next question, not so long if the task has changed."""
        with anyio.move_on_after(min(pause_s, POLL_S_MIN)):
            await self._ended.wait()
        with anyio.move_on_after(pause_s - POLL_S_MIN):
            await self._changed.wait()
        self._changed = anyio.Event()

    async def _state(self) -> TaskState:
        params = types.GetTaskRequestParams(task_id=self._task)
        try:
            return await self._ask(_GetTask(params=params), TaskState)
        except MCPError as error:
            said = error.error.message[:ERROR_MAX]
            raise OutcomeUnknown(
                f"the server does not know the task {self._task}: {said}"
            ) from None

    async def _payload(self, state: TaskState) -> types.CallToolResult:
        if state.error is not None:
            said = state.error.get("message") or state.status_message or "the task failed"
            raise Refused("TOOL_ERROR", str(said)[:ERROR_MAX])
        if state.result is not None:
            try:
                return types.CallToolResult.model_validate(state.result, by_name=False)
            except ValidationError:
                text = "the server sent no result of the protocol for the task"
                raise Failed("INVALID_RESULT", text) from None
        params = types.GetTaskPayloadRequestParams(task_id=self._task)
        try:
            return await self._ask(types.GetTaskPayloadRequest(params=params), types.CallToolResult)
        except MCPError as error:  # What the call itself would have been answered.
            raise Refused("TOOL_ERROR", error.error.message[:ERROR_MAX]) from None

    async def _cancel(self) -> None:
        """Ask the server to end it, which it may ignore."""
        params = types.CancelTaskRequestParams(task_id=self._task)
        with suppress(MCPError, Failed):
            await self._ask(_CancelTask(params=params), types.Result)
