"""An upgrade breaks no live run: what began with one guest build goes on with it, on newer nodes.

The newer nodes have a build of their own, other bodies of tools, and a cache in which the old build
is not: they find it in the realm.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rookery.bus.server.server import EmbeddedServer
from rookery.schemas.digest import digest_bytes
from tests.builds import own_build
from tests.chaos.newer_nodes import NewerNodes
from tests.chaos.test_parked_runs import TOOLS, Waiting, told
from tests.execution.programs import Programs
from tests.nodes import access_to, rookery_here
from tests.stock_client import Fields


@pytest.fixture
def realm(server: EmbeddedServer, tmp_path: Path) -> NewerNodes:
    realm = NewerNodes(server, tmp_path)
    newer = TOOLS.replace('return f"did {line}"', 'return f"did {line} the new way"')
    (tmp_path / "newer_tools.py").write_text(newer, encoding="utf-8")
    return realm


@pytest.fixture(scope="module")
def old() -> str:
    return digest_bytes(own_build())


def builds(programs: Programs) -> list[str]:
    """What each run was given."""
    return [fact["offer"]["build"] for fact in programs.of("turn.started")]


async def another(waiting: Waiting, session: str) -> Programs:
    programs = Programs(waiting.client, session)
    await programs.follow()
    return programs


def test_a_run_that_was_parked_under_an_older_build_finishes_on_it(realm: NewerNodes, old: str):
    first = realm.careful()

    async def story(waiting: Waiting) -> None:
        asked = await waiting.parked("kept = [1]\nstrike('it') + str(kept)")
        first.kill()
        new = await realm.move_on()
        second = await asyncio.to_thread(realm.newer, "newer_tools:TOOLS")
        await waiting.decide(asked)
        assert await waiting.result() == "did it the new way[1]"
        assert len(waiting.programs.of("tool.intent_recorded")) == 1
        fresh = await another(waiting, "fresh")
        assert (await fresh.run("1 + 1"))["result"] == 2
        assert (await waiting.programs.run("kept.append(2)\nkept"))["result"] == [1, 2]
        assert (builds(waiting.programs), builds(fresh)) == ([old, old], [new])
        where = (*access_to(realm.server, realm.realm), "--json")
        shown = [
            await asyncio.to_thread(rookery_here, realm.folder, *looked, *where)
            for looked in (("sessions", "show", "s"), ("nodes", "list"))
        ]
        assert shown[0].json["build"] == old  # type: ignore[index]
        assert [node["builds"]["python"] for node in shown[1].json] == [new]  # type: ignore
        second.kill()
        await asyncio.to_thread(realm.newer, "newer_tools:TOOLS")
        assert (await waiting.programs.run("kept"))["result"] == [1, 2]
        kept = await waiting.client.ask("snapshot", "s", {})
        copied = {"snapshot_id": kept.body["snapshot_id"]}
        assert (await waiting.client.ask("restore", "copy", copied)).code == ""
        copy = await another(waiting, "copy")
        assert (await copy.run("kept.append(3)\nkept"))["result"] == [1, 2, 3]
        assert (await copy.run("kept"))["result"] == [1, 2, 3]
        assert builds(copy) == [old, old]

    told(realm, story)
    assert realm.done == ["it"]


def test_a_run_under_way_goes_on_with_the_build_it_began_with(realm: NewerNodes, old: str):
    first = realm.careful()

    async def story(waiting: Waiting) -> None:
        programs = waiting.programs
        await programs.run("import random\nfirst = random.random()")
        run = programs.begin("n = pay(1)\n[n, await pause(2), 0 <= first < 1]")
        await programs.seen("tool.intent_recorded", 2)
        first.kill()
        await realm.move_on()
        await asyncio.to_thread(realm.newer, "newer_tools:TOOLS")
        assert (await run)["result"] == ["did paid 1", 2, True]
        assert builds(programs) == [old, old]

    told(realm, story)


def test_a_run_whose_build_is_nowhere_to_be_had_ends_and_nothing_is_executed(
    realm: NewerNodes, old: str
):
    first = realm.careful()

    async def story(waiting: Waiting) -> None:
        asked = await waiting.parked("strike('it')")
        first.kill()
        new = await realm.move_on()
        await realm.lose(waiting.client, old)
        await asyncio.to_thread(realm.newer)
        await waiting.decide(asked)
        (ended,) = await waiting.programs.seen("turn.failed")
        error: Fields = ended["result"]["error"]
        assert error["code"] == "SNAPSHOT_FOREIGN_BUILD"
        assert old in error["hint"]
        assert waiting.programs.of("tool.intent_recorded") == []
        refused = await waiting.programs.run("1 + 1")
        assert refused["error"]["code"] == "SNAPSHOT_FOREIGN_BUILD"
        await waiting.client.ask("destroy", "s", {})
        assert (await waiting.programs.run("1 + 1"))["result"] == 2
        assert builds(waiting.programs) == [old, old, new]

    told(realm, story)
    assert realm.done == []
