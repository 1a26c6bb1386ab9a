"""A model acts in programs of its session: ``run_code``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rookery.bus.client import Client
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.agents.code_node import RESULT, approver, code_node, ledger_lines, work
from tests.agents.model_kills import messages_of, turn_facts
from tests.execution.realm_fixture import Serving

REALM = "code"
LANGUAGES = pytest.mark.parametrize("language", ["python", "typescript"])


@pytest.fixture(scope="module")
def coding(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("code")
    with code_node(server, folder, REALM) as node:
        yield Serving(server, node, REALM, folder, Role.OPERATOR)


def client_of(coding: Serving) -> Client:
    return Client(coding.url_for(Role.OPERATOR), realm=REALM)


def facts_of(coding: Serving, session: str) -> list[dict[str, Any]]:
    facts = asyncio.run(turn_facts(coding.server, REALM))
    return [fact for fact in facts if fact["session"] == session]


@LANGUAGES
def test_programs_of_a_model_share_the_memory_of_their_session(coding: Serving, language: str):
    async def ask() -> None:
        async with client_of(coding) as client, approver(coding.server, REALM, language):
            more = {"language": language}
            answer = await work(client, language, f"go on in {language}", **more)
            assert json.loads(answer.result) == {
                "status": "ok",
                "result": 3 + 4 + 15 + 4,
                "stdout": "again\n",
            }
            names = [call.name for call in answer.external_calls]
            assert sorted(names) == sorted(
                ["look"] * 3 + ["pay"] * 2 + ["grant"] + ["run_code"] * 2
            )
            assert answer.metrics.instructions > 0
            seen = await client.run(language, {"code": "total([1, 2])", "language": language})
            assert seen.result == 3, "a later program of a client sees the function, too"
            assert (await client.replay(language, answer.run_id))["state"] == "equal"

    asyncio.run(ask())
    facts = facts_of(coding, language)
    requested = {f["operation_id"]: f for f in facts if f["type"] == "tool.requested.v1"}
    programs = [op for op, fact in requested.items() if fact["name"] == "run_code"]
    inner = [fact for fact in requested.values() if fact["name"] != "run_code"]
    assert [fact["parent"] for fact in inner] == [programs[0]] * 5 + [programs[1]]
    intents = {f["operation_id"] for f in facts if f["type"] == "tool.intent_recorded.v1"}
    assert not intents & set(programs), "a program may be repeated: it has no intent"
    assert intents == {fact["operation_id"] for fact in inner}
    first = next(
        f for f in facts if f["type"] == "tool.completed.v1" and f["operation_id"] == programs[0]
    )
    assert first["value"] == {"status": "ok", "result": RESULT}


def test_programs_and_calls_of_one_answer(coding: Serving):
    async def ask() -> None:
        async with client_of(coding) as client:
            answer = await work(client, "both", "both at once", tool_mode="both")
            assert answer.result == '{"status":"ok","result":null} 1 {"status":"ok","result":2}'
            assert (await client.run("both", "n")).result == 1

    asyncio.run(ask())


CASES = {
    "1 / 0": "ZeroDivisionError",
    "1 +": "SYNTAX_ERROR",
    "while True: pass": "TIMEOUT_",
    "run_code('1')": "run_code",
}


@pytest.mark.parametrize("code", CASES)
def test_a_program_that_fails_is_a_result_and_leaves_nothing(coding: Serving, code: str):
    session = f"fails-{list(CASES).index(code)}"

    async def ask() -> None:
        async with client_of(coding) as client:
            await work(client, session, "code:kept = 1")
            limits = {"cpu_ms": 200}
            answer = await work(client, session, f"code:lost = 2\n{code}", limits=limits)
            assert CASES[code] in answer.result
            assert (await client.run(session, "kept")).result == 1

    asyncio.run(ask())


def test_a_program_reaches_no_tool_that_its_run_may_not_call(coding: Serving):
    async def ask() -> None:
        async with client_of(coding) as client:
            rights = {"tools": [{"tool": "pay"}]}
            answer = await work(client, "rights", "code:await look('tea')", grants=rights)
            assert "look" in json.loads(answer.result)["error"]["message"]
            named = await work(client, "named", "code:await look('tea')", tools=["pay"])
            assert "look" in json.loads(named.result)["error"]["message"]
            hidden = await client.run("hidden", prompt="code:1")
            assert "UNKNOWN_TOOL" in hidden.result, "without tool_mode there is no run_code"
            offered = await client.run("offered", prompt="code:1", tools=["run_code"])
            assert json.loads(offered.result)["result"] == 1

    asyncio.run(ask())
    assert not any(line.startswith("look tea") for line in ledger_lines(coding.folder))


def test_a_definition_is_there_after_a_restart_and_an_approval(
    server: EmbeddedServer, tmp_path: Path
):
    realm = "code-restart"

    async def begin() -> None:
        async with Client(server.url_for(Role.OPERATOR, realm=realm), realm=realm) as client:
            body = {"prompt": "go on", "tool_mode": "code"}
            handle = await client.begin("s", body, message_id="m", through_parks=False)
            parked = await handle.result()
            assert parked.error is not None
            assert parked.error.code == "WAITING_FOR_APPROVAL"
            assert "grant" in parked.error.message

    async def end() -> Any:
        url = server.url_for(Role.OPERATOR, realm=realm)
        async with Client(url, realm=realm) as client, approver(server, realm, "s"):
            body = {"prompt": "go on", "tool_mode": "code"}
            handle = await client.begin("s", body, message_id="m")
            return json.loads((await handle.result()).result)

    with code_node(server, tmp_path, realm) as node:
        asyncio.run(begin())
        node.kill()
    with code_node(server, tmp_path, realm):
        assert asyncio.run(end())["result"] == 26
    done = [line.split()[0] for line in ledger_lines(tmp_path)]
    assert sorted(done) == ["grant", "look", "look", "look", "pay"]


def test_a_program_with_m_calls_costs_m_messages_more(coding: Serving):
    """A busy node may record an outcome alone: one of some runs has no message more."""
    calls = 4
    text = "code:" + "\n".join(f"pay({number})" for number in range(calls))
    costs: list[int] = []

    async def ask() -> None:
        async with client_of(coding) as client:
            for number in range(12):
                await work(client, f"counted-{number}", text)
                costs.append(await _messages(coding, f"counted-{number}"))
                if costs[-1] <= 5 + calls:
                    return

    asyncio.run(ask())
    assert costs[-1] == 5 + calls, costs


async def _messages(coding: Serving, session: str) -> int:
    """How many messages the last run of a session has left, with its admission and its end."""
    stored = await messages_of(coding.server, REALM)
    found = [one.entity for one in stored if one.entity.key == session]
    families = [entity.family for entity in found]
    return families.count("turn") + 1
