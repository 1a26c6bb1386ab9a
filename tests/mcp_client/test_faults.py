"""What a hostile server does costs its own surface at most: it is coded and bounded, and nothing of
the server is left."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rookery.ops.mcp_client import require_mcp
from rookery.schemas.errors import CodedError, Refused
from rookery.schemas.surfaces import SurfaceKind, SurfaceSource
from tests.mcp_client.server_fixtures import (
    FREE,
    HOSTILE,
    code_of,
    hostile,
    is_running,
    opened,
    play,
    until,
)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("hang", "did not connect within 0.5 s"),
        ("garbage", "writes what is no message"),
        ("giant", "sent a message of more than"),
    ],
)
def test_a_server_that_never_connects_is_refused_in_time(mode: str, words: str):
    async def scenario() -> None:
        limit_ms = 500 if mode == "hang" else 30_000
        with pytest.raises(CodedError, match="SURFACE_UNAVAILABLE") as refused:
            async with opened(hostile(mode, connect_timeout_ms=limit_ms)):
                raise AssertionError("it connected")
        assert words in refused.value.message

    play(scenario())


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (SurfaceSource(kind=SurfaceKind.MCP_STDIO, command=("no-such-program",)), "no program"),
        (hostile(folder="/no/such/folder"), "no folder"),
        (hostile(environment={"A": "${NOT_SET_ANYWHERE}"}), "variable NOT_SET_ANYWHERE"),
        (SurfaceSource(kind=SurfaceKind.MCP_STDIO, command=("false",)), "the server ended"),
    ],
)
def test_what_cannot_be_started_says_why(source: SurfaceSource, words: str):
    async def scenario() -> None:
        with pytest.raises(CodedError, match="SURFACE_UNAVAILABLE") as refused:
            async with opened(source):
                raise AssertionError("it connected")
        assert words in refused.value.message

    play(scenario())


def test_only_mcp_servers_are_opened():
    async def scenario() -> None:
        with pytest.raises(Refused, match="INVALID_ARGUMENT"):
            async with opened(SurfaceSource(kind=SurfaceKind.WORKER)):
                raise AssertionError("it connected")

    play(scenario())


def test_a_server_that_ends_at_a_newer_question_is_asked_in_the_older_way():
    async def scenario() -> None:
        async with opened(hostile("old")) as server:
            assert (await server.call("echo", {"text": "x"})).value == "x"

    play(scenario())


def test_a_newer_server_is_followed_and_asks_in_vain():
    async def scenario() -> None:
        async with opened(hostile("modern")) as server:
            known = server.capabilities
            assert code_of(await server.call("need_input")) == "UNSUPPORTED_FEATURE"
            assert (await server.call("announce")).value == "changed"
            await until(lambda: server.capabilities != known)
            assert server.capabilities[0].description == "the second words"

    play(scenario())


def test_tools_that_cannot_be_offered_are_named_and_the_others_are_offered():
    async def scenario() -> None:
        async with opened(hostile("schemas")) as server:
            names = [one.name for one in server.capabilities]
            assert names == ["shop_a_b", "shop_bomb", "shop_evil", "shop_fine"]
            problems = server.connection.problems
            assert sorted(problems) == ["a.b", "broken", "huge", "remote"]
            assert "TOOL_NAME_CONFLICT" in problems["a.b"]
            evil = next(one for one in server.capabilities if one.name == "shop_evil")
            assert "x-pattern" in evil.input_schema["properties"]["text"]

    play(scenario())


def test_large_results_and_floods_are_bounded_and_the_server_stays_usable():
    async def scenario() -> None:
        async with opened(hostile()) as server:
            assert code_of(await server.call("big", {"bytes": 2_000_000})) == "PAYLOAD_TOO_LARGE"
            assert (await server.call("flood", {"messages": 2_200})).value == "flooded"
            assert (await server.call("garbage", {"lines": 50})).value == "done"
            assert (await server.call("echo", {"text": "x"})).value == "x"
            assert len(server.connection.log) == 1_000
            assert not any(report.error for report in server.reports)

    play(scenario())


def test_a_server_gets_a_clean_environment_no_descriptor_and_its_limit():
    environ = {**os.environ, "SECRET_OF_THE_NODE": "x" * 30, "MODE": "quiet"}
    limits = {"memory_bytes": 1 << 30, "cpu_seconds": 600}
    more = {"environment": {"A": "${MODE}", "B": "${NOT_SET:-usual}"}, **limits}

    async def scenario() -> None:
        async with opened(hostile(**more), environ=environ) as server:
            found = (await server.call("environ")).value
            assert found["files"] == [0, 1, 2]
            assert (found["environment"]["A"], found["environment"]["B"]) == ("quiet", "usual")
            assert "SECRET_OF_THE_NODE" not in found["environment"]
            assert (found["memory"], found["cpu"]) == (1 << 30, 600)
            folder = Path(found["folder"])
            assert folder.is_dir()
        assert not folder.exists()

    play(scenario())


def test_nothing_that_a_server_has_started_is_left_when_it_is_closed():
    async def scenario() -> None:
        async with opened(hostile()) as server:
            own = [(await server.call("environ")).value["pid"]]
            own += map(int, (await server.call("fork")).value.split())
            assert all(map(is_running, own))
        assert not any(map(is_running, own))

    play(scenario())


NODE = """
import asyncio, json, os, sys
from rookery.schemas.surfaces import SurfaceKind, SurfaceSource
from tests.mcp_client.server_fixtures import hostile, opened

async def serve():
    async with opened(hostile()) as server:
        own = [(await server.call("environ")).value["pid"]]
        own += map(int, (await server.call("fork")).value.split())
        print(json.dumps(own), flush=True)
        await asyncio.sleep(600)

asyncio.run(serve())
"""


def test_a_server_with_all_it_has_started_ends_with_a_killed_node():
    node = subprocess.Popen(
        [sys.executable, "-c", NODE], stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert node.stdout is not None
    try:
        own = json.loads(node.stdout.readline())
        assert all(map(is_running, own))
    finally:
        node.send_signal(signal.SIGKILL)
        node.wait()
        node.stdout.close()

    async def scenario() -> None:
        await until(lambda: not any(map(is_running, own)))

    play(scenario())


def test_a_call_while_the_server_cannot_be_started_again_is_not_made(tmp_path: Path):
    program = tmp_path / "server.py"
    program.write_text(HOSTILE.read_text())
    command = (sys.executable, "-I", "-S", str(program), "usual")
    source = SurfaceSource(kind=SurfaceKind.MCP_STDIO, command=command, policy=FREE)

    async def scenario() -> None:
        async with opened(source) as server:
            program.unlink()
            os.kill((await server.call("environ")).value["pid"], signal.SIGKILL)
            await until(lambda: any(report.error for report in server.reports))
            outcome = await server.call("echo", {"text": "x"}, timeout_ms=500)
            assert code_of(outcome) == "SURFACE_UNAVAILABLE"
            program.write_text(HOSTILE.read_text())
            assert (await server.call("echo", {"text": "x"})).value == "x"
            assert any("rookery: " in line for line in server.connection.log)

    play(scenario())


def test_connections_can_be_closed_in_every_state():
    async def scenario() -> None:
        async with opened(hostile()) as server:
            slow = asyncio.ensure_future(server.call("sleep", {"seconds": 600}))
            await asyncio.sleep(0.1)
            await server.connection.close()
            with pytest.raises(Exception, match=r"ended|not connected"):
                await slow
            assert code_of(await server.call("echo", {"text": "x"})) == "SURFACE_UNAVAILABLE"
            await server.connection.close()

    play(scenario())


def test_without_the_sdk_a_server_is_refused_with_the_line_to_type(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "mcp", None)  # It cannot be imported.

    async def scenario() -> None:
        with pytest.raises(Refused) as refused:
            async with opened(hostile()):
                raise AssertionError("it cannot be opened")
        assert refused.value.code == "EXTRA_MISSING"
        assert "pip install 'rookery[mcp]'" in refused.value.hint

    play(scenario())
    with pytest.raises(Refused, match="not installed"):
        require_mcp()
