"""A node is killed at every step of adding and removing a surface; the next one goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import count, pairwise
from pathlib import Path

import pytest

from rookery.actors.kernel.failpoints import SURFACE_FAILPOINTS
from rookery.bus.server.server import EmbeddedServer
from tests.nodes import replace_node
from tests.stock_client import Stock, until
from tests.surfaces.surface_realm import WORKER, SurfaceRealm, change, run

SESSION = "mortal"
SEES = "'desk_work' in [tool['name'] for tool in list_tools()]"
_realms = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("kills") / "store", admin=True) as running:
        yield running


async def add_call_remove(client: Stock) -> None:
    """Every request is repeated until a node answers it."""
    assert not (await change(client, "add", add={"desk": WORKER})).code
    assert (await run(client, SESSION, "await desk_work(0)", "first"))["result"] == 0
    assert (await run(client, SESSION, SEES, "sees"))["result"] is True
    assert not (await change(client, "remove", remove=["desk"])).code
    assert (await run(client, SESSION, SEES, "without"))["result"] is False
    refused = await run(client, SESSION, "await desk_work(0)", "refused")
    assert refused["error"]["code"] == "UNKNOWN_TOOL", refused


async def check_facts(client: Stock, realm: SurfaceRealm) -> None:
    catalogue = await realm.facts(client, "surface", "_realm")
    numbers = [fact["sequence"] for fact in catalogue]
    assert numbers == sorted(numbers)
    surface = await realm.facts(client, "surface", SESSION)
    kinds = [fact["type"].removeprefix("surface.").removesuffix(".v1") for fact in surface]
    assert kinds.count("removal_finalized") == 1, kinds
    epochs = [fact["epoch"] for fact in surface if "epoch" in fact]
    assert all(one <= after for one, after in pairwise(epochs)), epochs
    removed = next(f for f in surface if f["type"] == "surface.removal_finalized.v1")
    calls = await realm.facts(client, "turn", SESSION)
    intents = [fact for fact in calls if fact["type"] == "tool.intent_recorded.v1"]
    assert all(i["sequence_of_message"] < removed["sequence_of_message"] for i in intents)
    assert realm.calls("began")[0] <= len(intents), "nothing runs twice unseen"


@pytest.mark.parametrize("failpoint", SURFACE_FAILPOINTS)
def test_a_node_may_die_at_any_step_of_a_change(
    server: EmbeddedServer, tmp_path: Path, failpoint: str
):
    realm = SurfaceRealm(server, f"kill{next(_realms)}", tmp_path)
    mortal, successor = realm.node(ROOKERY_FAILPOINT=failpoint), realm.node()

    async def scenario() -> None:
        replacing = asyncio.create_task(replace_node(mortal, successor))
        try:
            async with realm.client() as client:
                await add_call_remove(client)
                while not any(
                    fact["type"] == "surface.removal_finalized.v1"
                    for fact in await realm.facts(client, "surface", SESSION)
                ):
                    await asyncio.sleep(0.05)
                await check_facts(client, realm)
            await until(lambda: not mortal.running)
        finally:
            replacing.cancel()
            with suppress(asyncio.CancelledError):
                await replacing

    with realm.worker("desk"), closing(mortal), closing(successor):
        mortal.start()
        asyncio.run(scenario())
