"""MCP clients and servers of the benches: the official SDK, with one tool or many.

The SDK is imported when it is used: most benches do without it.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from rookery.ops.bench.harness.load import Task
from rookery.schemas.errors import Failed

if TYPE_CHECKING:
    from mcp import Client as McpClient
    from mcp.server import Server

__all__ = ["call_same", "role_command", "serve_many", "serve_same", "started", "url_of_many"]

_SAME = "same"
_TOOLS_MAX = 40


@asynccontextmanager
async def started(*command: str) -> AsyncIterator[McpClient]:
    """A client of a server that it starts, by stdio."""
    from mcp import Client, StdioServerParameters  # noqa: PLC0415 - of an extra.

    program, *arguments = command
    async with Client(StdioServerParameters(command=program, args=arguments)) as client:
        yield client


async def call_same(client: McpClient) -> object:
    """Call the tool with 2; its result."""
    answer = await client.call_tool(_SAME, {"value": 2})
    return (answer.structured_content or {}).get("result", answer.content)


@asynccontextmanager
async def url_of_many(task: Task) -> AsyncIterator[str]:
    """The URL of a server with many tools, which runs in this block."""
    process = await asyncio.create_subprocess_exec(
        *role_command("mcp_many", task),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().strip()
        if not url:
            raise Failed("NODE_FAILED", "the MCP server of the bench did not start")
        yield url
    finally:
        process.stdin.close()
        await process.wait()


def role_command(role: str, task: Task) -> tuple[str, ...]:
    """The command of a process of the bench."""
    text = msgspec.json.encode(task).decode()
    return (sys.executable, "-m", "rookery.ops.bench", role, text)


# --- servers --------------------------------------------------------------------------------------


def serve_same(task: Task) -> None:
    """Serve one tool by the SDK alone, by stdio, until the client closes its end."""
    del task
    asyncio.run(_serve_stdio(_server(1)))


def serve_many(task: Task) -> None:
    """Serve tools by HTTP until the input ends, at most 40; print the URL."""
    asyncio.run(_serve_http(_server(min(task.entities, _TOOLS_MAX))))


def _server(count: int) -> Server[Any]:
    """A server with ``count`` tools that return their argument."""
    import mcp_types as types  # noqa: PLC0415 - of an extra.
    from mcp.server import Server  # noqa: PLC0415 - of an extra.

    schema = {"type": "object", "properties": {"value": {"type": "integer"}}}
    names = [_SAME, *(f"same_{number}" for number in range(1, count))]
    tools = [types.Tool(name=name, description=_SAME, input_schema=schema) for name in names]

    async def list_tools(_: object, __: object) -> types.ListToolsResult:
        return types.ListToolsResult(tools=tools)

    async def call_tool(_: object, params: types.CallToolRequestParams) -> types.CallToolResult:
        value = (params.arguments or {})["value"]
        return types.CallToolResult(
            content=[types.TextContent(text=str(value))], structured_content={"result": value}
        )

    return Server("same", on_list_tools=list_tools, on_call_tool=call_tool)


async def _serve_stdio(server: Server[Any]) -> None:
    from mcp.server.stdio import stdio_server  # noqa: PLC0415 - of an extra.

    async with stdio_server() as (received, replies):
        await server.run(received, replies, server.create_initialization_options())


async def _serve_http(server: Server[Any]) -> None:
    import uvicorn  # noqa: PLC0415 - of an extra.

    listener = socket.create_server(("127.0.0.1", 0))
    app = server.streamable_http_app()
    http = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1))
    serving = asyncio.create_task(http.serve([listener]))
    print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    http.should_exit = True
    await serving
