"""The functions of a node's own process are the surface ``local``: an operator may remove it from
the realm, and return it, while the realm runs. Sessions take up nothing until it is removed under
their run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from rookery.actors.tools.attempts import CallSlots
from rookery.actors.tools.authoring.registry import ToolRegistry
from rookery.actors.tools.builtin.sleep import built_in_tools
from rookery.actors.tools.calls import CallRules
from rookery.actors.tools.catalogue import CatalogueTool, ToolCatalogue
from rookery.actors.turns.run_surfaces import RunSurfaces, closed_to, surfaces_at_start
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.calls import RunEnvironment, VisibleSurfaces
from rookery.schemas.errors import Refused
from rookery.schemas.run import Language, SessionLimits
from tests.nodes import NodeProcess, Said, access_to, rookery_here
from tests.stock_client import Stock
from tests.surfaces.surface_realm import SurfaceRealm, begin, change, run
from tests.surfaces.test_changes_under_load import kinds_of
from tests.tools.tool_fixtures import capability

HELD = """
import asyncio
one, refused = asyncio.ensure_future(work(1)), set()
while not one.done():
    await asyncio.sleep(0.25)
    try:
        await work(0)
    except Exception as error:
        refused.add(str(error).partition(":")[0])
[sorted(refused), await one]
"""
"""One call is in flight until the test lets it go, over boundaries at which others begin."""
SEES = "'work' in [tool['name'] for tool in list_tools()]"


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SurfaceRealm]:
    folder = tmp_path_factory.mktemp("local")
    with EmbeddedServer(folder / "store", admin=True) as server:
        yield SurfaceRealm(server, "local", folder)


def node(realm: SurfaceRealm, name: str) -> NodeProcess:
    variables = {"ROOKERY_NODE_NAME": name, "ROOKERY_NODE_RECORD_READS": "before"}
    return realm.node_with_functions(**variables)


async def kinds(realm: SurfaceRealm, client: Stock, session: str) -> list[str]:
    return kinds_of(await realm.facts(client, "surface", session), "local")


async def reach(
    realm: SurfaceRealm, client: Stock, session: str, kind: str, times: int = 1
) -> list[str]:
    """Wait until the session has so many facts of this kind."""
    async with asyncio.timeout(60):
        while (found := await kinds(realm, client, session)).count(kind) < times:
            await asyncio.sleep(0.05)
    return found


def test_functions_are_removed_under_calls_and_returned(realm: SurfaceRealm, tmp_path: Path):
    async def removed() -> None:
        async with realm.client() as client:
            assert (await run(client, "quiet", "await work(0)"))["result"] == 0
            running = begin(client, "busy", HELD)
            await realm.began(2)
            assert await realm.facts(client, "surface", "_realm") == []
            assert await realm.facts(client, "surface", "busy") == [], "nothing was to be taken up"
            assert not (await change(client, remove=["local"])).code
            await reach(realm, client, "busy", "boundary_applied", 2)
            made = realm.calls("began")
            assert (await run(client, "later", SEES))["result"] is False
            assert (await run(client, "later", "await sleep(0)"))["result"] is None
            assert (await client.ask("tools", "all", {"name": "work"})).body["tools"] == []
            realm.let_go()
            refused, found = (await running)["result"]
            assert all(code.startswith("SURFACE_") for code in refused), refused
            assert (found, realm.calls("began")) == (1, made)
            assert await reach(realm, client, "busy", "removal_finalized") == [
                *("add_staged", "boundary_applied", "pending_succeeded", "remove_staged"),
                *("call_started", "boundary_applied", "call_finished", "removal_finalized"),
            ]
            assert await kinds(realm, client, "quiet") == await kinds(realm, client, "later") == []

    async def returned() -> None:
        async with realm.client() as client:
            assert (await run(client, "busy", SEES))["result"] is False, "of the next node, too"
            again = await change(client, add={"local": {"kind": "local"}})
            assert again.body["surfaces"][0]["tools"] == ["act", "brief", "sleep", "work"]
            assert (await run(client, "busy", "await work(0)"))["result"] == 0
            await reach(realm, client, "busy", "pending_succeeded", 2)
            view = (await client.ask("surfaces", "busy", {"input": "visible_surfaces"})).body
            assert view["visible_surfaces"] == ["local"]

    with node(realm, "one"):
        asyncio.run(removed())
    with node(realm, "two"):
        asyncio.run(returned())
        show_functions(realm, tmp_path, "two: act, brief, work")


def show_functions(realm: SurfaceRealm, folder: Path, listed: str) -> None:
    """The command line shows the functions of each node, removes and returns them."""

    def rookery(*words: str, code: int = 0) -> Said:
        said = rookery_here(folder, *words, *access_to(realm.server, realm.realm))
        assert said.code == code, said
        return said

    assert listed in rookery("surfaces", "show", "local").out
    rookery("surfaces", "remove", "local")
    assert "surfaces add local" in rookery("surfaces", "list").out
    assert "work" in rookery("surfaces", "add", "local").out
    assert "--tools" in rookery("surfaces", "reload", "local", code=2).err
    assert "local is" in rookery("surfaces", "add", "local", "--worker", code=2).err


# --- rules ----------------------------------------------------------------------------------------

_CATALOGUE = ToolCatalogue(
    [
        CatalogueTool.of("local", capability("work"), awaited=True),
        *built_in_tools(ToolRegistry()),
    ]
)
_ENVIRONMENT = RunEnvironment(
    language=Language.PYTHON,
    build="b",
    seed="00",
    limits=SessionLimits(),
    tools=_CATALOGUE.available_tools,
)


def test_a_run_that_starts_without_the_functions_never_has_them():
    visible = VisibleSurfaces(catalogued=1, without=("local",))
    offered = replace(_ENVIRONMENT, surfaces=visible)
    started = surfaces_at_start(offered, RunSurfaces(), _CATALOGUE.is_function)
    assert [tool.name for tool in started.tools] == ["sleep"]
    slots: Any = CallSlots([], None, None)  # type: ignore[arg-type]
    rules = CallRules(_CATALOGUE, slots, "n1", closed=closed_to(started, RunSurfaces()))
    assert rules.require_visible("sleep")
    with pytest.raises(Refused, match="SURFACE_UNAVAILABLE"):
        rules.require_visible("work")
    assert not closed_to(_ENVIRONMENT, RunSurfaces())


def test_a_run_that_began_with_the_functions_is_refused_them_once_they_are_removed():
    catalogue = ToolCatalogue(_CATALOGUE)
    slots: Any = CallSlots([], None, None)  # type: ignore[arg-type]
    rules = CallRules(catalogue, slots, "n1")
    assert rules.require_visible("work")
    catalogue.set_surfaces((), frozenset({"local"}))
    with pytest.raises(Refused, match="SURFACE_UNAVAILABLE"):
        rules.require_visible("work")
    assert rules.require_visible("sleep")
    assert [tool.available.name for tool in catalogue if catalogue.is_withdrawn(tool)] == ["work"]
    catalogue.set_surfaces(())
    assert rules.require_visible("work")
