"""In the newer protocol tasks are an extension: a server by the official SDK decides for each call
whether it goes on as a task."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from rookery.actors.tools import ToolCallContext
from rookery.actors.tools.hosts import OutcomeUnknown, TaskCreated
from rookery.schemas.surfaces import SurfaceKind, SurfaceSource
from tests.mcp_client.server_fixtures import FREE, code_of, opened, play
from tests.mcp_client.test_server_tasks import begin, follow

SERVER = Path(__file__).with_name("task_server.py")
SOURCE = SurfaceSource(
    kind=SurfaceKind.MCP_STDIO, command=(sys.executable, str(SERVER)), policy=FREE
)
ENDS = {
    "said_error": ("TOOL_ERROR", "found"),
    "failed": ("TOOL_ERROR", "nothing is known of it"),
    "garbage": ("INVALID_RESULT", "no result of the protocol"),
    "input_required": ("UNSUPPORTED_FEATURE", "input"),
    "cancelled": ("CANCELLED", "no time"),
}


def test_a_server_lets_calls_go_on_as_tasks_by_the_extension():
    async def scenario() -> None:
        async with opened(SOURCE) as server:
            assert (await server.call("cancels")).value == {"result": "0"}, "it ends at once"
            ctx = ToolCallContext(name="shop_research", args=[], kwargs={}, call_id="day")
            with pytest.raises(TaskCreated) as created:
                await server.connection.host.call(ctx, 20_000)
            assert created.value.left_ms == 86_400_000, "the policy says nothing of its time"
            task = await begin(server, "research", seconds=0.2)
            for _ in range(2):
                assert (await follow(server, "research", task)).value == "found"
            for end, (code, words) in ENDS.items():
                outcome = await follow(server, "research", await begin(server, "research", end=end))
                assert code_of(outcome) == code, end
                assert words in str(outcome.error)
            task = await begin(server, "research", seconds=600)
            assert code_of(await follow(server, "research", task, 50)) == "TIMEOUT_TOOL"
            following = asyncio.ensure_future(follow(server, "research", task))
            await asyncio.sleep(0)
            server.connection.host.cancel("research")
            assert code_of(await following) == "CANCELLED"
            assert (await server.call("cancels")).value == {"result": "3"}
            with pytest.raises(OutcomeUnknown, match="does not know the task gone"):
                await follow(server, "research", "gone")

    play(scenario())
