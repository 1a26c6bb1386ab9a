"""The surfaces that a node is started with (``--workers``) are entries of the realm's catalogue, as
if an operator had added them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import pytest
from msgspec.structs import replace

from rookery.actors.execution import RunProvisioner
from rookery.actors.hooks import NodeHooks
from rookery.actors.kernel.executors import NotExecutableHere
from rookery.actors.tools.attempts import CallSlots
from rookery.actors.tools.calls import CallRules
from rookery.actors.tools.catalogue import CatalogueTool, ToolCatalogue
from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.calls import RunEnvironment
from rookery.schemas.errors import Refused
from rookery.schemas.facts.surface import REALM_KEY
from rookery.schemas.run import Language, RunRequest, SessionLimits
from rookery.schemas.surfaces import SurfaceKind
from tests.mcp_client.server_fixtures import HOSTILE
from tests.nodes import NodeProcess, NotReady, node_on
from tests.surfaces.surface_realm import SurfaceRealm, change, run
from tests.tools.tool_fixtures import capability


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SurfaceRealm]:
    folder = tmp_path_factory.mktemp("started")
    with EmbeddedServer(folder / "store", admin=True) as server:
        yield SurfaceRealm(server, "started", folder)


def started_with(realm: SurfaceRealm, surface: str) -> NodeProcess:
    more = ("--driver", "sandbox", "--workers", surface)
    return node_on(realm.server, realm.realm, realm.folder, *more)


def test_a_node_adds_the_surface_it_is_started_with_and_an_operator_may_remove_it(
    realm: SurfaceRealm,
):
    sees = "'desk_act' in [tool['name'] for tool in list_tools()]"

    async def scenario() -> None:
        async with realm.client() as client:
            (catalogued,) = await realm.facts(client, "surface", REALM_KEY)
            assert catalogued["type"] == "surface.catalogued.v1"
            assert (catalogued["surface_id"], catalogued["actor"]) == ("desk", "node.workers")
            assert (await run(client, "one", "await desk_act(7)"))["result"] == 7
            assert not (await change(client, remove=["desk"])).code
            assert (await run(client, "one", sees))["result"] is False

    async def again(times: int) -> None:
        async with realm.client() as client:
            facts = await realm.facts(client, "surface", REALM_KEY)
            assert [f["type"] for f in facts].count("surface.catalogued.v1") == times
            assert (await run(client, "one", sees))["result"] is True

    with realm.worker("desk"):
        with started_with(realm, "desk"):
            asyncio.run(scenario())
        with started_with(realm, "desk"):
            asyncio.run(again(2))
        with realm.node():  # It was started with nothing, and the realm has the surface.
            asyncio.run(again(2))


def test_a_node_does_not_replace_a_server_of_the_realm_by_workers(realm: SurfaceRealm):
    command = [sys.executable, "-I", "-S", str(HOSTILE), "usual"]

    async def scenario() -> None:
        async with realm.client() as client:
            added = await change(client, add={"dam": {"kind": "mcp_stdio", "command": command}})
            assert not added.code, added
            with closing(started_with(realm, "dam")) as node, pytest.raises(NotReady) as refused:
                await asyncio.to_thread(node.start)
            assert "CONFIG_INVALID" in str(refused.value)
            assert "rookery surfaces remove dam" in str(refused.value)

    with realm.node(), realm.worker("dam"):
        asyncio.run(scenario())


# --- runs of an older version ---------------------------------------------------------------------

WORK: Final = capability("desk_work")
OTHER: Final = capability("desk_work", input_schema={"type": "array"})
ADDED: Final = CatalogueTool.of("desk", WORK, awaited=True, kind=SurfaceKind.WORKER)


def test_a_run_that_began_with_a_workers_tool_as_its_nodes_own_continues():
    catalogue = ToolCatalogue()
    slots: Any = CallSlots([WORK], None, None)  # type: ignore[arg-type]
    offered = (ADDED.available,)
    assert not catalogue.on_surfaces(offered), "no surface has it"
    catalogue.expect([ADDED])
    rules = CallRules(catalogue, slots, "n1")
    with pytest.raises(Refused, match="UNKNOWN_TOOL"):
        rules.require_visible("desk_work")
    continued = rules._replace(visible=catalogue.on_surfaces(offered))
    assert continued.require_visible("desk_work") is ADDED
    catalogue.set_surfaces([CatalogueTool.of("desk", OTHER, awaited=True)])
    with pytest.raises(Refused, match="SURFACE_UNAVAILABLE"):
        continued.require_visible("desk_work")


def test_a_run_waits_for_a_node_that_has_its_tools_wherever_they_are_from():
    catalogue = ToolCatalogue()
    provisioner = RunProvisioner(
        builds={Language.PYTHON: "b"},
        tools=(),
        catalogue="",
        limits_max=SessionLimits(),
        entropy=bytes,
        hooks=NodeHooks(),
        added=catalogue.get,
    )
    started = provisioner(RunRequest(code="1"))
    assert isinstance(started, RunEnvironment)
    begun = replace(started, tools=(ADDED.available,))
    with pytest.raises(NotExecutableHere):
        provisioner.require_tools(begun)
    catalogue.expect([ADDED])
    provisioner.require_tools(begun)
    catalogue.set_surfaces([CatalogueTool.of("desk", OTHER, awaited=True)])
    with pytest.raises(Refused, match="SNAPSHOT_CAPABILITY_MISMATCH"):
        provisioner.require_tools(begun)
