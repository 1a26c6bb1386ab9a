"""Calls that go on as tasks of a server: how they begin, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from rookery.actors.tools.hosts import OutcomeUnknown, PastAttempt, TaskCreated
from rookery.ops.mcp_client import server_tasks
from rookery.schemas.calls import ApprovalMode, CallOutcome
from rookery.schemas.surfaces import SurfacePolicy, ToolPolicy
from tests.mcp_client.server_fixtures import OpenServer, code_of, hostile, opened, play

HOUR_MS = 3_600_000
LONG = SurfacePolicy(
    default=ToolPolicy(approval=ApprovalMode.NONE),
    tools={"sleep": ToolPolicy(approval=ApprovalMode.NONE, timeout_ms=2 * HOUR_MS)},
)


async def begin(server: OpenServer, tool: str, **arguments: Any) -> str:
    """The task by which a call goes on."""
    with pytest.raises(TaskCreated) as created:
        await server.call(tool, arguments, timeout_ms=2 * HOUR_MS)
    return created.value.task


async def follow(server: OpenServer, tool: str, task: str, left_ms: int = HOUR_MS) -> CallOutcome:
    name = f"shop_{tool}"
    past = PastAttempt(name=name, call_id=tool, attempt=1, schema_digest="", left_ms=left_ms)
    return await server.connection.host.follow_task(past, task)


@asynccontextmanager
async def long_calls() -> AsyncIterator[OpenServer]:
    async with opened(hostile(policy=LONG)) as server:
        yield server


def test_a_call_goes_on_as_a_task_and_has_its_result_later():
    async def scenario() -> None:
        async with long_calls() as server:
            task = await begin(server, "research", seconds=0.3)
            assert (await follow(server, "research", task)).value == "found after 0.3 s"
            again = await follow(server, "research", task)
            assert again.value == "found after 0.3 s", "another process may follow it, too"

    play(scenario())


def test_a_node_asks_for_a_task_when_its_server_says_that_it_has_changed(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(server_tasks, "POLL_S_MAX", HOUR_MS / 1_000)

    async def scenario() -> None:
        async with long_calls() as server:
            task = await begin(server, "research", seconds=0.5, poll_ms=HOUR_MS)
            assert (await follow(server, "research", task)).value == "found after 0.5 s"

    play(scenario())


def test_a_tool_that_may_run_as_a_task_does_so_if_its_policy_lets_it_take_long():
    async def scenario() -> None:
        async with long_calls() as server:
            task = await begin(server, "sleep", seconds=0)
            assert (await follow(server, "sleep", task)).value == "awake"
        async with opened(hostile()) as server:
            assert (await server.call("sleep", {"seconds": 0})).value == "awake"

    play(scenario())


def test_a_tool_that_runs_as_a_task_only_has_a_day_and_needs_a_server_with_tasks():
    async def scenario() -> None:
        async with long_calls() as server:
            (research,) = [one for one in server.capabilities if one.name == "shop_research"]
            assert research.limits.timeout_ms == 24 * HOUR_MS
        async with opened(hostile("no_tasks")) as server:
            assert "task only" in server.connection.problems["research"]

    play(scenario())


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ("failed", "TOOL_ERROR", "found after"),
        ("refused", "TOOL_ERROR", "nothing is known of it"),
        ("cancelled", "CANCELLED", "the server cancelled"),
        ("input_required", "UNSUPPORTED_FEATURE", "input"),
    ],
)
def test_a_task_that_ends_without_a_value_says_why(end: str, code: str, words: str):
    async def scenario() -> None:
        async with long_calls() as server:
            outcome = await follow(server, "research", await begin(server, "research", end=end))
            assert code_of(outcome) == code
            assert words in str(outcome.error)

    play(scenario())


def test_a_task_that_nothing_waits_for_is_cancelled_at_its_server():
    async def scenario() -> None:
        async with long_calls() as server:
            task = await begin(server, "research", seconds=600)
            following = asyncio.ensure_future(follow(server, "research", task))
            await asyncio.sleep(0.1)
            server.connection.host.cancel("research")
            assert code_of(await following) == "CANCELLED"
            assert (await server.call("cancels")).value == "1"
            task = await begin(server, "research", seconds=600)
            assert code_of(await follow(server, "research", task, 100)) == "TIMEOUT_TOOL"
            assert (await server.call("cancels")).value == "2"

    play(scenario())


def test_a_task_that_its_server_does_not_know_has_an_unknown_outcome():
    async def scenario() -> None:
        async with long_calls() as server:
            with pytest.raises(OutcomeUnknown, match="does not know the task gone"):
                await follow(server, "research", "gone")

    play(scenario())
