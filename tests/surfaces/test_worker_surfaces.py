"""Worker surfaces that come and go on a running realm: programs see them at their next turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from rookery.actors.sandbox.runtime.introspection import INTROSPECTION, SEARCH
from rookery.bus.server.server import EmbeddedServer
from tests.nodes import Said, access_to, rookery_here
from tests.stock_client import Stock
from tests.surfaces.surface_realm import WORKER, SurfaceRealm, begin, change, run

_sessions = count(1)


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SurfaceRealm]:
    """A node that started without any surface; each test has one of its own."""
    folder = tmp_path_factory.mktemp("live")
    with EmbeddedServer(folder / "store", admin=True) as server:
        realm = SurfaceRealm(server, "live", folder)
        with realm.node():
            yield realm


def session() -> str:
    return f"session-{next(_sessions)}"


async def listed(client: Stock, name: str, function: str = "list_tools()", **more: Any) -> set[str]:
    found = await run(client, name, f"[tool['name'] for tool in {function}]", **more)
    return set(found["result"]) - {*INTROSPECTION, SEARCH.name, "sleep"}


def test_a_surface_is_added_and_removed_while_the_realm_runs(realm: SurfaceRealm):
    async def scenario() -> None:
        async with realm.client() as client:
            name = session()
            assert await listed(client, name) == set()
            added = await change(client, add={"desk": WORKER})
            assert added.body["surfaces"][0]["tools"] == ["desk_act", "desk_brief", "desk_work"]
            assert await listed(client, name) == {"desk_act", "desk_brief", "desk_work"}
            assert await listed(client, session(), "search_tools('act')") == {"desk_act"}
            found = await run(
                client,
                session(),
                "search_tools('act').map(tool => tool.name)",
                language="typescript",
            )
            assert found["result"] == ["desk_act"]
            assert (await run(client, name, "await desk_act(7)"))["result"] == 7
            view = (await client.ask("surfaces", name, {"input": "visible_surfaces"})).body
            assert view["visible_surfaces"] == ["desk"]
            assert not (await change(client, remove=["desk"])).code
            assert await listed(client, name) == set()
            refused = await run(client, name, "await desk_act(8)")
            assert refused["error"]["code"] == "UNKNOWN_TOOL"
            assert not (await change(client, remove=["desk"])).code, "again: nothing changes"

    with realm.worker("desk"):
        asyncio.run(scenario())


def test_a_surface_of_one_session_is_seen_by_no_other(realm: SurfaceRealm):
    async def scenario() -> None:
        async with realm.client() as client:
            mine, other = session(), session()
            assert not (await change(client, add={"den": WORKER}, session=mine)).code
            assert "den_act" in await listed(client, mine)
            assert "den_act" not in await listed(client, other)
            assert (await run(client, mine, "await den_act(1)"))["result"] == 1
            found = await run(client, other, "await den_act(2)")
            assert found["error"]["code"] == "UNKNOWN_TOOL"
            assert not (await change(client, reload=["den"])).code
            assert "den_act" not in await listed(client, other), "a reload keeps whose it is"
            wrong = await change(client, add={"den": WORKER}, session="_x")
            assert wrong.code == "INVALID_SESSION_ID"

    with realm.worker("den"):
        asyncio.run(scenario())


def test_a_call_of_a_surface_leaves_the_facts_of_any_call_and_none_of_the_surface(
    realm: SurfaceRealm,
):
    async def scenario() -> None:
        async with realm.client() as client:
            assert not (await change(client, add={"toll": WORKER})).code
            name, surface = session(), list[dict[str, Any]]()
            assert (await run(client, name, "await toll_act(1)"))["result"] == 1
            while "surface.pending_succeeded.v1" not in {fact["type"] for fact in surface}:
                surface = await realm.facts(client, "surface", name)
            found = await run(client, name, "await toll_act(2)")
            assert found["result"] == 2
            turns = await realm.facts(client, "turn", name)
            kinds = [fact["type"] for fact in turns if fact.get("run") == found["run_id"]]
            assert [kind for kind in kinds if kind.startswith("tool.")] == [
                "tool.requested.v1",
                "tool.intent_recorded.v1",
                "tool.completed.v1",
            ]
            assert await realm.facts(client, "surface", name) == surface

    with realm.worker("toll"):
        asyncio.run(scenario())


def test_what_a_run_may_call_holds_for_new_tools(realm: SurfaceRealm):
    async def scenario() -> None:
        async with realm.client() as client:
            await change(client, add={"shop": WORKER})
            only = {"grants": {"tools": [{"tool": "shop_act"}]}}
            assert await listed(client, session(), **only) == {"shop_act"}
            found = await run(client, session(), "await shop_work(0)", **only)
            assert "RIGHT_MISSING" in str(found["error"]), found
            assert (await run(client, session(), "await shop_act(1)", **only))["result"] == 1

    with realm.worker("shop"):
        asyncio.run(scenario())


def test_a_tool_with_other_schemas_is_refused_until_the_next_run(realm: SurfaceRealm):
    """A right, or an approval, for the earlier tool never covers the later one."""
    code = """
said = ""
while "SURFACE_" not in said:
    await sleep(0.2)
    try:
        await mill_brief(0)
    except Exception as error:
        said = str(error)
said
"""

    async def scenario() -> None:
        async with realm.client() as client:
            await change(client, add={"mill": WORKER})
            name, only = (
                session(),
                {"grants": {"tools": [{"tool": "mill_brief"}, {"tool": "sleep"}]}},
            )
            running = begin(client, name, code, **only)
            await realm.began(1)
            await asyncio.to_thread(old.stop)
            with realm.worker("mill", "changed_tools"):
                assert not (await change(client, reload=["mill"])).code
                said = (await running)["result"]
                assert "SURFACE_UNAVAILABLE" in said
                assert "other schemas" in said
                found = await run(client, name, "await mill_brief(1, 'because')")
                assert found["result"] == "1: because"

    with realm.worker("mill") as old:
        (realm.folder / "calls").unlink(missing_ok=True)
        realm.let_go()
        asyncio.run(scenario())


def test_only_an_operator_changes_the_catalogue_and_only_nodes_end_its_jobs(realm: SurfaceRealm):
    async def scenario() -> None:
        async with realm.client() as client:
            missing = await change(client, reload=["nowhere"])
            assert missing.code == "SURFACE_NOT_FOUND"
            unserved = await change(client, add={"nobody": WORKER})
            assert unserved.code == "SURFACE_UNAVAILABLE"
            assert "rookery tools serve" in str(unserved.body)
            local = await change(client, add={"here": {"kind": "local"}})
            assert local.code == "INVALID_ARGUMENT"
            empty = await change(client)
            assert empty.code == "INVALID_ARGUMENT"
            name = session()
            await run(client, name, "1")
            raw = {"input": "mark_pending_succeeded"}
            raw |= {"params": {"surface_id": "s", "task_seq": 0, "lineage_seq": 0}}
            assert (await client.ask("surfaces", name, raw)).code == "GUARD_REJECTED"

    asyncio.run(scenario())


def test_a_surface_whose_workers_are_gone_is_listed_as_disconnected(realm: SurfaceRealm):
    async def scenario() -> None:
        async with realm.client() as client:
            with realm.worker("barn"):
                assert not (await change(client, add={"barn": WORKER})).code
                await run(client, session(), "await barn_act(1)")
                assert await shown(client) == ("Connected", "")

            gone = "Disconnected", "no worker serves barn"
            async with asyncio.timeout(60):
                while await shown(client) != gone:
                    await asyncio.sleep(0.05)
            assert not (await change(client, remove=["barn"])).code

    async def shown(client: Stock) -> tuple[str, str]:
        (one,) = (await client.ask("catalogued", "_realm", {"surface": "barn"})).body["surfaces"]
        return one["state"], one.get("error", "")

    asyncio.run(scenario())


def test_the_command_line_shows_each_step(realm: SurfaceRealm, tmp_path: Path):
    def rookery(*words: str, code: int = 0) -> Said:
        said = rookery_here(tmp_path, *words, *access_to(realm.server, realm.realm))
        assert said.code == code, said
        return said

    with realm.worker("tower"):
        assert "--worker" in rookery("surfaces", "add", "tower", code=2).err
        assert "tower_work" in rookery("surfaces", "add", "tower", "--worker").out
        assert "tower" in rookery("surfaces", "list").out
        assert "tower_act" in rookery("surfaces", "show", "tower").out
        said = rookery("run", "-e", "await tower_act(5)", "--session", "towered")
        assert said.out.strip() == "5"
        runs = rookery("runs", "list", "--session", "towered", "--json").out
        run_id = runs.partition('"run_id":"')[2].partition('"')[0]
        assert "of tower" in rookery("runs", "show", run_id).out
        assert "Active" in rookery("surfaces", "list", "--session", "towered").out
        rookery("surfaces", "reload", "tower")
        rookery("surfaces", "remove", "tower")
        assert "SURFACE_NOT_FOUND" in rookery("surfaces", "show", "tower", code=4).err
        assert "equal" in rookery("runs", "replay", run_id).out, "with the tools of its start"
