"""Conversations between real realms: two nodes on one server, sessions that ask and respond."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from rookery.bus.client import Client
from rookery.bus.ports import Filter
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.errors import Refused
from rookery.schemas.peers.envelope import PeerFailure
from tests.peers.peer_realms import PeerRealm, pair_realms

Realms = tuple[PeerRealm, PeerRealm]


@pytest.fixture(scope="module")
def realms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Realms]:
    folder = tmp_path_factory.mktemp("mesh")
    with EmbeddedServer(folder / "store", admin=True) as server:
        west, east = (PeerRealm(server, name, folder / name) for name in ("west", "east"))
        with west.node(), east.node():
            pair_realms(west, east)
            west.open_session("planner")
            east.open_session("coder")
            yield west, east


@asynccontextmanager
async def clients(realms: Realms) -> AsyncIterator[tuple[Client, Client]]:
    async with realms[0].client() as west, realms[1].client() as east:
        yield west, east


async def next_request(coder: Client, after: int) -> dict[str, Any]:
    """The next request that the coder receives."""
    async with aclosing(coder.events("peer", "coder", after=after)) as found:
        async for fact in found:
            if fact["type"] == "peer.request_received.v1":
                return fact
    raise AssertionError("the facts ended")


async def answer(coder: Client, after: int, **response: Any) -> str:
    request_id = str((await next_request(coder, after))["corr_id"])
    await coder.send_response("coder", request_id, **response)
    return request_id


def test_a_session_of_another_realm_is_asked_and_its_response_is_the_result(realms: Realms):
    async def scenario() -> None:
        async with clients(realms) as (planner, coder):
            after = await coder.journal.end()
            responder = asyncio.create_task(answer(coder, after, result={"lines": 3}))
            result = await planner.ask_peer("planner", "coder@east", "review", {"file": "x.py"})
            assert result == {"lines": 3}
            await responder
            exchanges = await planner.exchanges("planner")
            assert exchanges.requests == ()

    asyncio.run(scenario())


def test_a_failure_and_a_time_out_are_raised_with_their_codes(realms: Realms):
    async def scenario() -> None:
        async with clients(realms) as (planner, coder):
            after = await coder.journal.end()
            error = PeerFailure(code="NO_TESTS", message="write some")
            responder = asyncio.create_task(answer(coder, after, error=error))
            with pytest.raises(Refused, match="PEER_FAILED: NO_TESTS"):
                await planner.ask_peer("planner", "coder@east", "review")
            await responder
            with pytest.raises(Refused, match="PEER_TIMED_OUT"):
                await planner.ask_peer("planner", "coder@east", "review", timeout_s=0.2)

    asyncio.run(scenario())


def test_a_request_to_a_session_that_is_not_there_fails_at_once_and_leaves_no_fact(realms: Realms):
    async def scenario() -> None:
        async with clients(realms) as (planner, coder):
            with pytest.raises(Refused, match="PEER_DECLINED: PEER_NOT_ATTENDED"):
                await planner.ask_peer("planner", "nobody@east", "review")
            assert [one async for page in _pages(coder) for one in page] == []

    asyncio.run(scenario())


async def _pages(client: Client) -> AsyncIterator[list[Any]]:
    async for page in client.journal.scan(Filter("peer", "nobody")):
        yield page


def test_two_sessions_of_one_realm_need_no_pairing(realms: Realms):
    west, _ = realms
    west.open_session("tester")

    async def scenario() -> None:
        async with west.client() as client:
            after = await client.journal.end()
            receipt = await client.send_request("planner", "tester", "check", [1, 2])
            async with aclosing(client.events("peer", "tester", after=after)) as found:
                async for fact in found:
                    if fact["type"] == "peer.request_received.v1":
                        assert fact["corr_id"] == receipt.id
                        assert fact["request"]["name"] == "planner"
                        break
            await client.send_response("tester", receipt.id, result="ok")
            assert await client.wait_for_response("planner", receipt.id, after=after) == "ok"

    asyncio.run(scenario())
