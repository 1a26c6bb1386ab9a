"""Worker surfaces that come and go on a running realm: programs see them at their next turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.facts.surface import REALM_KEY
from tests.stock_client import Answer
from tests.tools.worker_processes import Crafts, Visit

WORKER = {"kind": "worker"}


@pytest.fixture(scope="module")
def crafts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crafts]:
    """A node that started without any surface."""
    folder = tmp_path_factory.mktemp("live")
    with EmbeddedServer(folder / "store", admin=True) as server:
        crafts = Crafts(server, folder)
        with crafts.node():
            yield crafts


async def change(visit: Visit, **body: Any) -> Answer:
    return await visit.client.ask("catalogue", REALM_KEY, body)


async def listed_tools(visit: Visit) -> set[str]:
    found = await visit.run("[tool['name'] for tool in list_tools()]")
    return set(found["result"]) - {"list_tools", "describe_tool", "current_policy", "sleep"}


def test_a_surface_is_added_and_removed_while_the_realm_runs(crafts: Crafts, tmp_path: Path):
    async def scenario(visit: Visit) -> None:
        assert await listed_tools(visit) == set()
        added = await change(visit, add={"desk": WORKER})
        assert not added.code, added
        assert "desk_price" in added.body["surfaces"][0]["tools"]
        assert "desk_price" in await listed_tools(visit)
        found = await visit.run("desk_price('tea')")
        assert (found["status"], found["result"]) == ("ok", 3), found
        removed = await change(visit, remove=["desk"])
        assert not removed.code, removed
        assert await listed_tools(visit) == set()
        found = await visit.run("desk_price('tea')")
        assert found["status"] != "ok", found

    with crafts.worker("desk", tmp_path):
        crafts.visit(scenario)
