"""A surface is removed, reloaded or killed under 64 concurrent calls."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from rookery.bus.server.server import EmbeddedServer
from tests.chaos.surface_kills import force_removal
from tests.stock_client import Stock
from tests.surfaces.surface_realm import CALLS, WORKER, SurfaceRealm, begin, change, run

SESSION = "busy"
PROGRAM = f"""
import asyncio
calls = [asyncio.ensure_future(desk_work(n)) for n in range(1, {CALLS + 1})]
refused = ""
while not all(call.done() for call in calls):
    await asyncio.sleep(0.3)
    try:
        await desk_work(0)
    except Exception as error:
        refused = str(error)
found = await asyncio.gather(*calls)
[refused, found]
"""
"""64 calls are in flight over many boundaries, at each of which another one begins."""
_realms = count(1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("load") / "store", admin=True) as running:
        yield running


@pytest.fixture
def realm(server: EmbeddedServer, tmp_path: Path) -> SurfaceRealm:
    return SurfaceRealm(server, f"load{next(_realms)}", tmp_path)


def kinds_of(facts: list[dict[str, Any]], surface: str) -> list[str]:
    """The kinds of the facts about a surface, in order."""
    mine = [fact["type"] for fact in facts if fact.get("surface_id") == surface]
    return [kind.removeprefix("surface.").removesuffix(".v1") for kind in mine]


def test_a_surface_removed_under_calls_takes_no_new_one_and_the_others_end(realm: SurfaceRealm):
    async def scenario() -> None:
        async with realm.client() as client:
            assert not (await change(client, add={"desk": WORKER})).code
            running = begin(client, SESSION, PROGRAM)
            await realm.began(CALLS + 1)
            assert not (await change(client, remove=["desk"])).code
            await until_kind(client, "boundary_applied", 2)
            made = realm.calls("began")
            await asyncio.sleep(0.3)
            assert realm.calls("began") == made, "no call starts on a removed surface"
            assert "removal_finalized" not in await seen(client), "calls are in flight"
            realm.let_go()
            refused, found = (await running)["result"]
            assert "SURFACE_" in refused, refused
            assert found == list(range(1, CALLS + 1)), "every started call has ended"
            await until_kind(client, "removal_finalized", 1)
            kinds = await seen(client)
            assert kinds.count("call_started") == kinds.count("call_finished") == CALLS
            facts = await realm.facts(client, "surface", SESSION)
            epochs = [fact["epoch"] for fact in facts if "epoch" in fact]
            assert all(one <= after for one, after in pairwise(epochs)), "epochs only grow"

    async def seen(client: Stock) -> list[str]:
        return kinds_of(await realm.facts(client, "surface", SESSION), "desk")

    async def until_kind(client: Stock, kind: str, times: int) -> None:
        while (await seen(client)).count(kind) < times:
            await asyncio.sleep(0.05)

    with realm.node(), realm.worker("desk"):
        asyncio.run(scenario())


def test_a_surface_reloaded_under_calls_loses_none(realm: SurfaceRealm):
    async def scenario() -> None:
        async with realm.client() as client:
            await change(client, add={"desk": WORKER})
            code = f"""
import asyncio
calls = [asyncio.ensure_future(desk_work(n)) for n in range(1, {CALLS + 1})]
first = await desk_work(0)
[first, await asyncio.gather(*calls)]
"""
            running = begin(client, SESSION, code)
            await realm.began(CALLS + 1)
            assert not (await change(client, reload=["desk"])).code
            realm.let_go()
            assert (await running)["result"] == [0, list(range(1, CALLS + 1))]
            assert set(realm.calls("ended").values()) == {1}, "nothing ran twice"
            assert (await run(client, SESSION, "await desk_work(0)"))["result"] == 0

    with realm.node(), realm.worker("desk"):
        asyncio.run(scenario())


def test_a_removal_is_forced_by_its_timer_while_a_call_is_in_flight(realm: SurfaceRealm):
    asyncio.run(force_removal(realm, behind_s=27))


def test_a_worker_killed_under_calls_is_replaced_and_every_call_ends(realm: SurfaceRealm):
    async def scenario(worker: Any) -> None:
        async with realm.client() as client:
            await change(client, add={"desk": WORKER})
            code = f"import asyncio\nawait asyncio.gather(*map(desk_brief, range(1, {CALLS + 1})))"
            running = begin(client, SESSION, code)
            await realm.began(CALLS)
            await asyncio.to_thread(worker.kill)
            realm.let_go()
            with realm.worker("desk"):
                assert (await running)["result"] == list(range(1, CALLS + 1))
                facts = await realm.facts(client, "turn", SESSION)
                intents = [f for f in facts if f["type"] == "tool.intent_recorded.v1"]
                twice = [n for n, times in realm.calls("began").items() if times > 1]
                assert len(intents) - CALLS >= len(twice), "a repeated call is on record"

    with realm.node():
        worker = realm.worker("desk").start()
        try:
            asyncio.run(scenario(worker))
        finally:
            worker.close()


def test_names_that_collide_are_refused_by_name(realm: SurfaceRealm):
    async def scenario() -> None:
        async with realm.client() as client:
            assert not (await change(client, add={"a_b": WORKER})).code
            refused = await change(client, add={"a-b": WORKER})
            assert refused.code == "TOOL_NAME_CONFLICT", refused
            assert "a_b_act" in str(refused.body) or "a_b_work" in str(refused.body)
            listed = await client.ask("catalogued", "_realm", {})
            assert [one["surface"] for one in listed.body["surfaces"]] == ["local", "a_b"]
            own = await change(client, reload=["local"])
            assert own.code == "INVALID_ARGUMENT", own
            assert "--tools" in str(own.body), "how a node gets other tools of its own"

    with realm.node(), realm.worker("a_b"), realm.worker("a-b"):
        asyncio.run(scenario())
