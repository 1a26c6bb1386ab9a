"""A request gets one result, or one error with a hint and a position, however often it is sent and
whatever happens to the node.
"""

from __future__ import annotations

import asyncio
import json
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from rookery.bus.client.client import Client
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.execution.programs import Programs, play_programs
from tests.execution.realm_fixture import Serving
from tests.nodes import NodeProcess, node_on
from tests.stock_client import Fields, Stock, stock, until


def test_an_invalid_request_is_refused_and_leaves_no_session(driving: Serving):
    refused: dict[str, object] = {
        "UNKNOWN_FIELD": {"code": "1", "cod": "2"},
        "INVALID_ARGUMENT": {"code": 7},
        "INVALID_JSON": b"{code",
    }

    async def scenario(client: Stock) -> None:
        for code, body in refused.items():
            for verb in ("run", "validate"):
                assert (await client.ask(verb, "no-request", body)).code == code
        assert (await client.ask("run", "no%20request", {})).code == "INVALID_SESSION_ID"
        assert (await client.ask("validate", "no%20request", {})).code == "INVALID_SESSION_ID"
        assert (await client.ask("session", "no-request")).code == "SESSION_NOT_FOUND"

    driving.visit(scenario)


# --- validation -----------------------------------------------------------------------------------


@pytest.mark.parametrize("door", ["validate", "run", "inbox"])
def test_a_validated_program_is_not_executed_and_leaves_no_fact(driving: Serving, door: str):
    programs = {
        "block(0)\nx = 1 / 0": None,
        "x = n": None,
        "x = 1\nx +": "SYNTAX_ERROR",
        "import socket": "UNSUPPORTED_FEATURE",
    }
    session = f"validated-{door}"

    async def ask(client: Stock, code: str) -> Fields:
        body = {"code": code, "inputs": {"n": 1}}
        if door == "validate":
            return (await client.ask("validate", session, body)).body
        body["validate_only"] = True
        if door == "run":
            return (await client.ask("run", session, body)).body
        reply = client.reply()
        await client.submit("run", session, body, Rookery_Reply=reply)
        name = reply.rpartition(".")[2]
        return (await until(lambda: client.answers[name]))[0].body

    async def scenario(client: Stock) -> None:
        for code, expected in programs.items():
            answer = await ask(client, code)
            assert (answer["error"] or {}).get("code") == expected, answer
            assert answer["status"] == ("validation_error" if expected else "ok")
            assert (answer["result"], answer["run_id"]) == (None, "")
            assert answer["session_id"] == session
            assert answer["external_calls"] == []
        assert (await client.ask("session", session)).code == "SESSION_NOT_FOUND"
        stream = f"ROOKERY_{client.realm}_JOURNAL"
        filtered = await (await client.admin()).stream_info(
            stream, subjects_filter=f"rookery.{client.realm}.ev.*.{session}"
        )
        assert not filtered.state.subjects

    driving.visit(scenario)


def test_validation_refuses_every_program_that_a_run_refuses(driving: Serving):
    async def scenario(client: Stock) -> None:
        for body, code in (
            ({"code": "1", "limits": {"cpu_ms": -1}}, "INVALID_ARGUMENT"),
            ({"code": "1", "inputs": {"a b": 1}}, "INVALID_ARGUMENT"),
        ):
            answer = (await client.ask("validate", "like-a-run", body)).body
            assert answer["error"]["code"] == code
            assert (await client.ask("run", "like-a-run", body)).body["error"] == answer["error"]
        other = await client.ask("validate", "like-a-run", {"session_id": "another"})
        assert other.code == "INVALID_ARGUMENT"

    driving.visit(scenario)


# --- repeats --------------------------------------------------------------------------------------

numbers = count(1)

TOOLS = '''
from pathlib import Path
from rookery.actors import tool

@tool(side_effect="read", timeout_ms=60_000)
async def count(seconds: float) -> int:
    """How often it was called, counted on disk; slow."""
    import asyncio
    calls = Path("calls")
    with calls.open("a") as file:
        file.write("x")
    await asyncio.sleep(seconds)
    return len(calls.read_text())
'''


class Counting(NamedTuple):
    """A realm whose nodes have one tool, which counts its calls in a file."""

    server: EmbeddedServer
    realm: str
    folder: Path

    def node(self) -> NodeProcess:
        arguments = ("--driver", "sandbox", "--tools", "countingtools:count")
        return node_on(self.server, self.realm, self.folder, *arguments)

    @property
    def calls(self) -> int:
        return len((self.folder / "calls").read_text())


@pytest.fixture
def counting(server: EmbeddedServer, tmp_path: Path) -> Counting:
    (tmp_path / "countingtools.py").write_text(TOOLS)
    return Counting(server, f"counting{next(numbers)}", tmp_path)


def test_one_id_is_one_run_at_every_entry_point_and_after_a_restart(counting: Counting):
    body = {"code": "await count(0)"}

    async def by_inbox(client: Stock, name: str) -> Fields:
        reply = client.reply(name)
        await client.submit("run", "once", body, Nats_Msg_Id="same", Rookery_Reply=reply)
        return (await until(lambda: client.answers[name]))[0].body

    async def scenario() -> None:
        async with stock(counting.server, counting.realm) as client:
            with counting.node():
                first = await client.ask("run", "once", body, Nats_Msg_Id="same")
                again = await client.ask("run", "once", body, Nats_Msg_Id="same")
                assert first.body == again.body == await by_inbox(client, "early")
            with counting.node():
                late = await client.ask("run", "once", body, Nats_Msg_Id="same")
                assert first.body == late.body == await by_inbox(client, "late")
                other = await client.ask("run", "once", {"code": "2"}, Nats_Msg_Id="same")
                assert other.code == "IDEMPOTENCY_KEY_REUSED"
                assert "new id" in other.error["hint"]
                assert first.body["result"] == counting.calls == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("way", ["killed", "stopped"])
def test_a_run_with_a_waiting_client_survives_the_restart_of_its_node(counting: Counting, way: str):
    """The tool only reads, so the call that the node died in is repeated."""

    async def scenario() -> None:
        async with Client(
            counting.server.url_for(Role.CLIENT, realm=counting.realm), realm=counting.realm
        ) as client:
            with counting.node() as node:
                handle = await client.begin("waited", "await count(1)", timeout_ms=60_000)
                async for fact in handle.events():
                    if fact["type"] == "tool.intent_recorded.v1":
                        break
                run = client.run("beside", "await count(1)", timeout_ms=60_000)
                beside = asyncio.create_task(run)
                await asyncio.to_thread(node.kill if way == "killed" else node.stop)
            with counting.node():
                assert (await handle.result(60)).run_id == handle.run_id
                assert (await handle.result()).status == (await beside).status == "ok"
                kinds = [fact["type"] async for fact in handle.events()]
                assert kinds.count("turn.completed.v1") == 1
                assert kinds.count("tool.completed.v1") == 1
                assert kinds.count("tool.intent_recorded.v1") == (2 if way == "killed" else 1)

    asyncio.run(scenario())


def test_facts_and_reply_have_the_same_result(driving: Serving):
    async def scenario(programs: Programs) -> None:
        answer = await programs.run("print('out')\necho({'a': [1, None]})", return_snapshot=True)
        await programs.at_rest()
        (completed,) = programs.of("turn.completed")
        said = {name: value for name, value in answer.items() if name in completed["result"]}
        assert json.dumps(completed["result"], sort_keys=True) == json.dumps(said, sort_keys=True)
        assert answer["snapshot_id"].startswith("snap_")

    play_programs(driving, "the-same", scenario)
