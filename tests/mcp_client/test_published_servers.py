"""Servers that people use, from the registries: every tool is listed, and one is called."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec import UNSET

from rookery.actors.tools.hosts import PastAttempt, TaskCreated
from rookery.schemas.calls import ApprovalMode
from rookery.schemas.run import SideEffect
from rookery.schemas.surfaces import SurfaceKind, SurfaceSource
from tests.mcp_client.server_fixtures import OpenServer, code_of, opened, play
from tests.node_packages import node_folder, python_folder

pytestmark = pytest.mark.timeout(300)  # The first one installs them.

NPM = "2026.8.31"
PYTHON_PACKAGES = (
    "mcp-server-fetch==2026.10.24",
    "mcp-server-git==2026.10.19",
    "mcp-server-time==2026.10.19",
)
NODE_PACKAGES = tuple(
    f"@modelcontextprotocol/server-{name}@{NPM}" for name in ("everything", "filesystem", "memory")
)


class Published(NamedTuple):
    """A server, how many tools it has, and a call of one with a part of its result."""

    name: str
    in_python: bool
    arguments: tuple[str, ...]
    tools: int
    tool: str
    given: dict[str, Any]
    result: str


SERVERS = (
    Published("time", True, (), 2, "get_current_time", {"timezone": "UTC"}, "UTC"),
    Published(
        "git", True, ("--repository", "{}"), 12, "git_status", {"repo_path": "{}"}, "No commits yet"
    ),
    Published(
        "fetch", True, (), 1, "fetch", {"url": "http://127.0.0.1:9/"}, "not a public address"
    ),
    Published(
        "filesystem", False, ("{}",), 14, "read_text_file", {"path": "{}/tea.txt"}, "green tea"
    ),
    Published("memory", False, (), 9, "read_graph", {}, "entities"),
    Published(
        "everything", False, (), 13, "get_structured_content", {"location": "Chicago"}, "humidity"
    ),
)


def source_of(server: Published, folder: Path) -> SurfaceSource:
    if server.in_python:
        program = python_folder("mcp-servers-python", PYTHON_PACKAGES) / "bin"
    else:
        program = node_folder("mcp-servers-node", NODE_PACKAGES) / "node_modules/.bin"
    arguments = [argument.format(folder) for argument in server.arguments]
    return SurfaceSource(
        kind=SurfaceKind.MCP_STDIO,
        command=(str(program / f"mcp-server-{server.name}"), *arguments),
        environment={"MEMORY_FILE_PATH": str(folder / "memory.json")},
    )


@pytest.mark.parametrize("server", SERVERS, ids=[server.name for server in SERVERS])
def test_the_tools_of_a_published_server_are_listed_and_called(server: Published, tmp_path: Path):
    (tmp_path / "tea.txt").write_text("green tea")
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)

    source = source_of(server, tmp_path)

    async def scenario() -> None:
        async with opened(source, surface=server.name) as one:
            require_offered(one, server)
            await require_called(one, server, tmp_path)

    play(scenario())


def require_offered(one: OpenServer, server: Published) -> None:
    assert len(one.capabilities) == server.tools, one.capabilities
    assert not one.connection.problems
    for capability in one.capabilities:
        assert capability.name.startswith(f"{server.name}_")
        assert capability.approval_policy is ApprovalMode.MANUAL
        assert capability.side_effect is SideEffect.EXTERNAL_SYSTEM
        assert not capability.idempotent


async def require_called(one: OpenServer, server: Published, folder: Path) -> None:
    given = {
        name: value.format(folder) if isinstance(value, str) else value
        for name, value in server.given.items()
    }
    outcome = await one.call(server.tool, given)
    said = outcome.value if outcome.error is UNSET else outcome.error.message
    assert server.result in str(said)


def test_a_tool_that_runs_as_a_task_only_begins_one_which_can_be_cancelled(tmp_path: Path):
    source = source_of(next(one for one in SERVERS if one.name == "everything"), tmp_path)

    async def scenario() -> None:
        async with opened(source) as one:
            with pytest.raises(TaskCreated) as created:
                await one.call("simulate_research_query", {"topic": "tea"})
            past = PastAttempt("shop_simulate_research_query", "call", 1, "", 60_000)
            following = asyncio.ensure_future(
                one.connection.host.follow_task(past, created.value.task)
            )
            await asyncio.sleep(0.5)
            one.connection.host.cancel("call")
            assert code_of(await following) == "CANCELLED"

    play(scenario())


def test_a_value_that_an_environment_hides_is_not_in_results(tmp_path: Path):
    """The server lists its whole environment, as some do when they fail."""
    server = next(one for one in SERVERS if one.name == "everything")
    source = source_of(server, tmp_path)
    secret = "a-secret-of-twenty-0001"
    environment = {"API_KEY": "${SECRET}", "FOLDER": str(tmp_path)}

    async def scenario() -> None:
        source_with = SurfaceSource(
            kind=source.kind, command=source.command, environment=environment
        )
        async with opened(source_with, surface="all", environ={"SECRET": secret}) as one:
            outcome = await one.call("get_env")
            assert "[credential]" in outcome.value
            assert secret not in outcome.value
            assert str(tmp_path) in outcome.value
            resources = await one.connection.list_resources()
            (content,) = await one.connection.read_resource(resources[0].uri)
            assert content.data

    play(scenario())
