"""A server by the official SDK whose calls go on as tasks, by the extension for them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.extension import Extension, MethodBinding
from mcp.server.mcpserver import MCPServer

AT = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttlMs": None}


class TaskParams(types.RequestParams):
    task_id: str


class Tasks(Extension):
    """``research`` takes its time, and ends as its argument says; other tools end at once."""

    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self) -> None:
        self.tasks: dict[str, dict[str, Any]] = {}
        self.cancelled = 0

    def methods(self) -> Sequence[MethodBinding]:
        return (
            MethodBinding("tasks/get", TaskParams, self.get),
            MethodBinding("tasks/cancel", TaskParams, self.cancel),
        )

    async def intercept_tool_call(
        self,
        params: types.CallToolRequestParams,
        ctx: ServerRequestContext[Any, Any],
        call_next: CallNext,
    ) -> HandlerResult:
        if params.name != "research":
            return await call_next(ctx)
        task, arguments = f"task-{len(self.tasks)}", params.arguments or {}
        due_s = time.monotonic() + arguments.get("seconds", 0)
        self.tasks[task] = {"due_s": due_s, "end": arguments.get("end", "completed")}
        return {"resultType": "task", "taskId": task, "status": "working", **AT}

    async def get(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> HandlerResult:
        del ctx
        task = self.tasks[params.task_id]
        state: dict[str, Any] = {"taskId": params.task_id, "pollIntervalMs": 50, **AT}
        if time.monotonic() < task["due_s"]:
            return {**state, "status": "working"}
        text = {"type": "text", "text": "found"}
        match task["end"]:
            case "completed" | "said_error" as end:
                result = {"content": [text], "isError": end == "said_error"}
                return {**state, "status": "completed", "result": result}
            case "failed":
                error = {"code": -32603, "message": "nothing is known of it"}
                return {**state, "status": "failed", "error": error}
            case "garbage":
                return {**state, "status": "completed", "result": {"content": 7}}
            case "input_required":
                return {**state, "status": "input_required", "inputRequests": {}}
        return {**state, "status": "cancelled", "statusMessage": "no time"}

    async def cancel(
        self, ctx: ServerRequestContext[Any, Any], params: TaskParams
    ) -> HandlerResult:
        del ctx
        self.tasks[params.task_id]["end"] = "cancelled"
        self.cancelled += 1
        return {}


tasks = Tasks()
server = MCPServer("tasks", extensions=[tasks])


@server.tool(structured_output=False)
def research(seconds: float = 0, end: str = "completed") -> str:
    """Goes on as a task."""
    return f"{end} after {seconds}"


@server.tool()
def cancels() -> str:
    """How many tasks were cancelled."""
    return str(tasks.cancelled)


if __name__ == "__main__":
    server.run()
