"""A full queue and a full realm refuse inputs with the limit's name and value, and accept again
when there is capacity.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.bus.roles import Role
from rookery.bus.server.server import EmbeddedServer
from tests.execution.realm_fixture import Serving
from tests.execution.session_client import Visit
from tests.nodes import node_on
from tests.stock_client import Stock

QUEUED_MAX, IN_FLIGHT_MAX = 3, 8


@pytest.fixture
def narrow(server: EmbeddedServer, tmp_path: Path) -> Iterator[Serving]:
    """A realm with low limits."""
    quotas = {
        "ROOKERY_QUOTAS_QUEUE_LENGTH_MAX": str(QUEUED_MAX),
        "ROOKERY_QUOTAS_RUNS_IN_FLIGHT_MAX": str(IN_FLIGHT_MAX),
    }
    with node_on(server, "narrow", tmp_path, **quotas) as node:
        yield Serving(server, node, "narrow", tmp_path, Role.OPERATOR)


def test_quotas_refuse_with_limit_and_value_and_accept_again_after_an_end(narrow: Serving):
    async def scenario(client: Stock) -> None:
        first, second, third = (Visit(client, name) for name in ("one", "two", "three"))
        await fills_up(first)
        await fills_up(second)
        await third.send("a", door="api")
        refused = (await third.answer("a")).error
        assert refused["code"] == "QUOTA_EXCEEDED"
        assert "8 runs in flight, the limit is 8" in refused["message"]
        assert await second.commit() == "a"
        await third.run("a", door="api", reply_name="again")
        assert await third.commit() == "a"

    narrow.visit(scenario)


async def fills_up(visit: Visit) -> None:
    """One input runs, three wait; the node refuses a fifth until one has ended."""
    for id_ in "abcd":
        await visit.run(id_)
    for door in ("cmd", "api"):
        await visit.send("e", door=door, reply_name=door)
        refused = (await visit.answer(door)).error
        assert refused["code"] == "QUOTA_EXCEEDED"
        assert f"3 inputs wait in session {visit.session}, the limit is 3" in refused["message"]
    if visit.session == "one":
        assert await visit.commit() == "a"
        await visit.run("e", reply_name="again")
