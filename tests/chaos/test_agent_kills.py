"""Requests to agents elsewhere whose node dies: one task there, one end here."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from rookery.bus.server.server import EmbeddedServer
from tests.a2a.stock_agents import StockAgent
from tests.chaos.agent_kills import agent_realm, ask_until_killed
from tests.peers.peer_realms import PeerRealm

SHORT = ("agent_called", "agent_answered")
"""Before the message leaves, and before its task is on record; the long form is ``make chaos``."""


@pytest.fixture(scope="module")
def agent() -> Iterator[StockAgent]:
    with StockAgent() as agent:
        yield agent


@pytest.fixture(scope="module")
def realm(
    server: EmbeddedServer, agent: StockAgent, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PeerRealm]:
    with agent_realm(server, tmp_path_factory.mktemp("agents"), agent.url) as realm:
        yield realm


@pytest.mark.parametrize("failpoint", SHORT)
def test_a_request_has_one_task_and_one_end_wherever_its_node_dies(
    realm: PeerRealm, agent: StockAgent, failpoint: str
):
    assert asyncio.run(ask_until_killed(realm, agent, failpoint)) == []
