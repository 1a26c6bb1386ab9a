"""Agents on a real node: programs and clients call them, and people see them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any

import pytest

from rookery.bus.client import Client
from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.errors import Refused
from rookery.schemas.peers.items import Responder
from rookery.schemas.run import Language
from tests.agents.child_agents import PROGRAMS
from tests.chaos.child_kills import RESULT, child_node
from tests.execution.realm_fixture import Serving
from tests.nodes import rookery_here, served_by

REALM = "family"


@pytest.fixture(scope="module")
def family(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("family")
    with child_node(server, REALM, folder) as node:
        yield Serving(server, node, REALM, folder, Role.OPERATOR)


def client_of(family: Serving) -> Client:
    return Client(family.url_for(Role.OPERATOR), realm=REALM)


@pytest.mark.parametrize("language", list(Language))
def test_a_program_calls_agents_as_it_calls_tools(family: Serving, language: Language):
    async def ask() -> Any:
        async with client_of(family) as client:
            return await client.run(language, PROGRAMS[language], language=language)

    answer = asyncio.run(ask())
    assert answer.error is None, answer
    assert answer.result == ["tea for 6", "milk for 8", "TYPE_ERROR"]
    assert [call.name for call in answer.external_calls] == ["buyer"] * 3


def test_a_client_runs_an_agent(family: Serving):
    async def ask() -> Any:
        async with client_of(family) as client:
            answer = await client.run("direct", agent="buyer", inputs={"thing": "tea"})
            with pytest.raises(Refused) as refused:
                await client.run("direct", agent="nobody")
            return answer, refused.value

    answer, refusal = asyncio.run(ask())
    assert answer.result == "tea for 6"
    assert refusal.code == "AGENT_NOT_FOUND"
    assert "buyer, leader, sleeper" in refusal.hint


def test_people_see_the_agents_of_a_node_and_the_tree_below_a_run(family: Serving):
    def cli(*words: str) -> str:
        where = served_by(family.server, REALM)
        said = rookery_here(family.folder, *words, *where)
        assert said.code == 0, said.err
        return said.out

    async def ask() -> Any:
        async with client_of(family) as client:
            answer = await client.run("parent", prompt="buy")
            assert answer.result == RESULT
            children = await listed(client, answer.run_id)
            return answer.run_id, children

    async def listed(client: Client, run_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []

        async def look() -> None:
            while len(found) < 2:
                runs = (await client.ask("runs", "all", {"parent": run_id}))["runs"]
                found[:] = [one for one in runs if one.get("ended_at_ms")]

        await asyncio.wait_for(look(), 60)
        return found

    run_id, children = asyncio.run(ask())
    assert {one["agent"] for one in children} == {"buyer"}
    assert {one["parent_run_id"] for one in children} == {run_id}
    first, *below = cli("runs", "show", run_id, "--tree").splitlines()
    assert first.startswith(f"run in session parent  {run_id}  ok")
    assert sorted(line.split()[1] for line in below) == sorted(one["run_id"] for one in children)
    shown = cli("runs", "show", children[0]["run_id"])
    assert "agent    buyer" in shown
    assert f"parent   {run_id}" in shown
    agents = json.loads(cli("agents", "list", "--json"))["agents"]
    assert [one["name"] for one in agents] == ["buyer", "leader", "sleeper"]
    assert "takes" in cli("agents", "show", "buyer")


def test_an_agent_answers_the_peers_of_a_session(family: Serving):
    """The ``params`` of a request are its arguments; a program of the other session asks."""

    async def ask() -> Any:
        async with client_of(family) as client:
            for session in ("shop", "customer"):
                await client.run(session, "1")
            with pytest.raises(Refused, match="a program or an agent"):
                await client.serve_peers("shop", Responder())
            await client.serve_peers("shop", Responder(agent="buyer"))
            asked = await client.send_request("customer", "shop", "buy", {"thing": "milk"})
            return await response_of(client, asked.id)

    async def response_of(client: Client, request_id: str) -> Any:
        async with aclosing(client.events("peer", "customer")) as facts:
            async for fact in facts:
                if fact["type"] == "peer.response_ended.v1" and fact["corr_id"] == request_id:
                    return fact["response"]["result"]
        return None

    assert asyncio.run(asyncio.wait_for(ask(), 90)) == "milk for 8"
