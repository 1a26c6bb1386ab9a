"""An MCP server is removed, reloaded or killed under 64 concurrent calls; 16 have a slot."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rookery.bus.server.server import EmbeddedServer
from tests.mcp_client.server_fixtures import HOSTILE
from tests.stock_client import Stock, until
from tests.surfaces.surface_realm import CALLS, SurfaceRealm, begin, change

pytestmark = pytest.mark.timeout(300)

SLOTS = 16
SOURCE = {
    "kind": "mcp_stdio",
    "command": [sys.executable, "-I", "-S", str(HOSTILE), "usual"],
    "policy": {"default": {"approval": "none", "side_effect": "write", "idempotent": True}},
}
PROGRAM = """
import asyncio
calls = [
    asyncio.ensure_future(NAME_hold(number=n, folder="FOLDER")) for n in range(1, CALLS + 1)
]
refused = ""
while PROBES and not refused:
    await asyncio.sleep(0.3)
    try:
        await NAME_echo(text="tea")
    except Exception as error:
        refused = str(error)
found = await asyncio.gather(*calls, return_exceptions=True)
[refused, [one if isinstance(one, str) else {"error": str(one)} for one in found]]
"""
"""64 calls at once; and calls at many boundaries, until one is refused."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    with EmbeddedServer(tmp_path_factory.mktemp("changes") / "store", admin=True) as running:
        yield running


@pytest.fixture(scope="module")
def served(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    realm = SurfaceRealm(server, "changing", tmp_path_factory.mktemp("node"))
    with realm.node():
        yield realm.realm


class Desk(SurfaceRealm):
    """A surface of this test alone, whose calls write into the test's folder."""

    def __init__(self, server: EmbeddedServer, realm: str, folder: Path, name: str) -> None:
        super().__init__(server, realm, folder)
        self.name = name

    def begin(self, client: Stock, *, probes: bool = False) -> asyncio.Task[dict[str, Any]]:
        words = {
            "NAME": self.name,
            "FOLDER": str(self.folder),
            "CALLS": str(CALLS),
            "PROBES": str(probes),
        }
        code = PROGRAM
        for word, value in words.items():
            code = code.replace(word, value)
        return begin(client, self.name, code)

    async def kinds(self, client: Stock) -> list[str]:
        """Of the facts about the surface, in order."""
        facts = await self.facts(client, "surface", self.name)
        epochs = [fact["epoch"] for fact in facts if "epoch" in fact]
        assert all(one <= after for one, after in pairwise(epochs)), "epochs only grow"
        mine = [fact["type"] for fact in facts if fact.get("surface_id") == self.name]
        return [kind.removeprefix("surface.").removesuffix(".v1") for kind in mine]

    async def until_kind(self, client: Stock, kind: str, times: int) -> None:
        while (await self.kinds(client)).count(kind) < times:
            await asyncio.sleep(0.05)

    async def intents(self, client: Stock) -> int:
        facts = await self.facts(client, "turn", self.name)
        return [fact["type"] for fact in facts].count("tool.intent_recorded.v1")


def test_a_server_removed_under_calls_takes_no_new_one_and_the_others_end(
    server: EmbeddedServer, served: str, tmp_path: Path
):
    desk = Desk(server, served, tmp_path, "removed")

    async def scenario() -> None:
        async with desk.client() as client:
            assert not (await change(client, add={desk.name: SOURCE})).code
            running = desk.begin(client, probes=True)
            await desk.began(SLOTS)
            assert not (await change(client, remove=[desk.name])).code
            await desk.until_kind(client, "boundary_applied", 2)
            desk.let_go()
            refused, found = (await running)["result"]
            assert "SURFACE_" in refused
            values = sorted(int(one) for one in found if isinstance(one, str))
            errors = [one["error"] for one in found if isinstance(one, dict)]
            assert Counter(values) == desk.calls("began") == desk.calls("ended")
            assert len(values) == SLOTS, "those with a slot have ended"
            assert len(errors) == CALLS - SLOTS
            assert all("SURFACE_" in one for one in errors), errors
            await desk.until_kind(client, "removal_finalized", 1)

    asyncio.run(scenario())


def test_a_server_reloaded_under_calls_loses_none(
    server: EmbeddedServer, served: str, tmp_path: Path
):
    desk = Desk(server, served, tmp_path, "reloaded")

    async def scenario() -> None:
        async with desk.client() as client:
            assert not (await change(client, add={desk.name: SOURCE})).code
            running = desk.begin(client)
            await desk.began(SLOTS)
            assert not (await change(client, reload=[desk.name])).code
            desk.let_go()
            _, found = (await running)["result"]
            assert found == [str(number) for number in range(1, CALLS + 1)]
            assert set(desk.calls("ended").values()) == {1}, "nothing ran twice"
            assert not (await change(client, remove=[desk.name])).code

    asyncio.run(scenario())


def test_a_server_killed_under_calls_is_started_again_and_every_call_ends(
    server: EmbeddedServer, served: str, tmp_path: Path
):
    desk = Desk(server, served, tmp_path, "killed")

    async def scenario() -> None:
        async with desk.client() as client:
            assert not (await change(client, add={desk.name: SOURCE})).code
            running = desk.begin(client)
            await desk.began(SLOTS)
            (pid,) = {line.split()[2] for line in (tmp_path / "calls").read_text().splitlines()}
            os.kill(int(pid), signal.SIGKILL)
            desk.let_go()
            _, found = (await running)["result"]
            assert found == [str(number) for number in range(1, CALLS + 1)]
            began = desk.calls("began")
            await until(lambda: sum(desk.calls("ended").values()) == CALLS)
            twice = sum(times - 1 for times in began.values())
            assert await desk.intents(client) >= CALLS + twice, "a repeated call is on record"
            assert not (await change(client, remove=[desk.name])).code

    asyncio.run(scenario())
