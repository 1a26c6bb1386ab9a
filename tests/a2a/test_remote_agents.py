"""Agents elsewhere as peers: on the Python SDK's server, on the JavaScript SDK's, and of a gateway
of ours in another realm."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from rookery.bus.client import Client
from rookery.bus.server.server import EmbeddedServer
from tests.a2a.stock_agents import StockAgent
from tests.peers.peer_realms import PeerRealm

Story = Callable[[Client], Awaitable[None]]


@pytest.fixture(scope="module")
def agent() -> Iterator[StockAgent]:
    with StockAgent(signs="EdDSA") as agent:
        yield agent


@pytest.fixture(scope="module")
def realm(agent: StockAgent, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PeerRealm]:
    """A realm that has accepted the agent as ``weather-agent``."""
    folder = tmp_path_factory.mktemp("agents")
    with EmbeddedServer(folder / "store", admin=True) as server:
        realm = PeerRealm(server, "west", folder / "west")
        realm.environment["ROOKERY_PEERS_NETWORKS"] = "127.0.0.0/8"
        with realm.node("--peers", ROOKERY_PEERS_NETWORKS="127.0.0.0/8"):
            realm.open_session("planner")
            ended = accept(realm, agent.url, "weather-agent")
            assert ended.code == 0, ended
            assert "trusted by the key of its card: Weather agent" in ended.out
            yield realm


def accept(realm: PeerRealm, url: str, alias: str, *more: str) -> Any:
    named = ("--a2a", url, "--as", alias, "--approval", "none")
    return realm.rookery("peers", "accept", *named, *more)


def play(realm: PeerRealm, story: Story) -> None:
    async def scenario() -> None:
        async with realm.client() as client:
            await story(client)

    asyncio.run(scenario())


async def ended(client: Client, session: str, request_id: str) -> list[dict[str, Any]]:
    """The facts of a request up to its end."""
    found: list[dict[str, Any]] = []
    async with aclosing(client.events("peer", session)) as feed:
        async for fact in feed:
            if request_id in (fact.get("corr_id"), fact.get("in_reply_to"), fact.get("item_id")):
                found.append(fact)
            if fact.get("corr_id") == request_id and fact["type"] in (
                "peer.response_ended.v1",
                "peer.request_timed_out.v1",
                "peer.request_send_failed.v1",
            ):
                return found
    raise AssertionError("the facts ended")


def test_a_program_asks_an_agent_by_its_alias_and_gets_its_answer(
    realm: PeerRealm, agent: StockAgent
):
    async def story(client: Client) -> None:
        ran = await client.run(
            "planner", 'await send_request("weather-agent", "ask", "Oslo")', timeout_s=60
        )
        assert ran.result == "sunny: Oslo"
        facts = await client.ask("exchanges", "planner", {})
        assert facts["requests"] == []

    before = len(agent.executed)
    play(realm, story)
    assert len(agent.executed) == before + 1
