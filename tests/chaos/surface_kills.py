"""Kill the node at every place where adding or removing a surface could lose something.

A session calls a tool of a surface that is added and removed, of workers or of an MCP server, while
the node is killed at one failpoint. Another node takes its place. Every request is repeated until a
node answers it.

    python -m tests.chaos.surface_kills
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from rookery.actors.kernel.failpoints import FAILPOINTS, RUN_FAILPOINTS, SURFACE_FAILPOINTS
from rookery.bus.server.server import EmbeddedServer
from tests.mcp_client.server_fixtures import HOSTILE
from tests.nodes import replace_node
from tests.stock_client import Stock
from tests.surfaces.surface_realm import WORKER, SurfaceRealm, begin, change, run

__all__ = ["EVERYWHERE", "KINDS", "kill_at"]

SESSION = "mortal"
EVERYWHERE: Final = tuple(
    f"{name}@{number}"
    for name in (*SURFACE_FAILPOINTS, *RUN_FAILPOINTS, *FAILPOINTS)
    for number in ((1, 2) if name in SURFACE_FAILPOINTS else (2, 5, 9, 14, 20, 28))
)
"""Of the long form; a pass that no change reaches kills nothing."""


HELD: Final = """
import asyncio
one, refused = asyncio.ensure_future(desk_work(1)), False
while not refused:
    await asyncio.sleep(0.2)
    try:
        await desk_work(0)
    except Exception:
        refused = True
await one
"""
"""One call is in flight until the test lets it go, over boundaries until the surface is removed."""
FORCED_MS: Final = 30_000


class Kind(NamedTuple):
    """A surface that is added, and a program that calls one of its tools."""

    source: Mapping[str, Any]
    program: str
    result: Any
    tool: str


_FREE = {"approval": "none", "side_effect": "write", "idempotent": True}
KINDS: Final = {
    "worker": Kind(WORKER, "await desk_work(0)", 0, "desk_work"),
    "mcp": Kind(
        {
            "kind": "mcp_stdio",
            "command": [sys.executable, "-I", "-S", str(HOSTILE), "usual"],
            "policy": {"default": _FREE},
        },
        "await desk_echo(text='tea')",
        "tea",
        "desk_echo",
    ),
}


async def kill_at(realm: SurfaceRealm, failpoint: str, kind: str = "worker") -> bool:
    """Add a surface, call its tool and remove it; whether the node has died at the failpoint.
    Raises ``AssertionError`` for what is lost, repeated or not removed."""
    mortal, successor = realm.node(ROOKERY_FAILPOINT=failpoint), realm.node()
    with ExitStack() as opened:
        if kind == "worker":
            opened.enter_context(realm.worker("desk"))
        opened.enter_context(closing(mortal))
        opened.enter_context(closing(successor))
        await asyncio.to_thread(mortal.start)
        replacing = asyncio.create_task(replace_node(mortal, successor))
        try:
            async with realm.client() as client:
                await _add_call_remove(client, KINDS[kind])
                await _until_fact(client, realm, "surface.removal_finalized.v1", 1)
                await _check_facts(client, realm)
            return not mortal.running
        finally:
            replacing.cancel()
            with suppress(asyncio.CancelledError):
                await replacing


async def force_removal(realm: SurfaceRealm) -> None:
    """A removal is forced after its 30 s; the call that it does not wait for longer ends."""
    with realm.worker("desk"), realm.node():
        async with realm.client() as client:
            assert not (await change(client, "add", add={"desk": WORKER})).code
            running = begin(client, SESSION, HELD, name="held")
            await realm.began(1)
            assert not (await change(client, "remove", remove=["desk"])).code
            await _until_fact(client, realm, "surface.removal_forced.v1", 1)
            facts = await realm.facts(client, "surface", SESSION)
            applied = [f for f in facts if f["type"] == "surface.boundary_applied.v1"][-1]
            forced = next(f for f in facts if f["type"] == "surface.removal_forced.v1")
            assert forced["at_ms"] - applied["at_ms"] >= FORCED_MS, "not before its time"
            realm.let_go()
            assert (await running)["status"], "the run has ended"


async def _until_fact(client: Stock, realm: SurfaceRealm, kind: str, times: int) -> None:
    while True:
        facts = await realm.facts(client, "surface", SESSION)
        if [fact["type"] for fact in facts].count(kind) >= times:
            return
        await asyncio.sleep(0.05)


async def _add_call_remove(client: Stock, kind: Kind) -> None:
    sees = f"'{kind.tool}' in [tool['name'] for tool in list_tools()]"
    assert not (await change(client, "add", add={"desk": kind.source})).code
    assert (await run(client, SESSION, kind.program, "first"))["result"] == kind.result
    assert (await run(client, SESSION, sees, "sees"))["result"] is True
    assert not (await change(client, "remove", remove=["desk"])).code
    assert (await run(client, SESSION, sees, "without"))["result"] is False
    refused = await run(client, SESSION, kind.program, "refused")
    assert refused["error"]["code"] == "UNKNOWN_TOOL", refused


async def _check_facts(client: Stock, realm: SurfaceRealm) -> None:
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


def campaign(folder: Path) -> bool:
    """Every failpoint with every kind of surface; prints a line a cell."""
    clean = True
    home = folder / "forced"
    home.mkdir()
    cells = [(kind, failpoint) for failpoint in EVERYWHERE for kind in KINDS]
    with EmbeddedServer(folder / "store", admin=True) as server:
        asyncio.run(force_removal(SurfaceRealm(server, "forced", home)))
        print("a removal is forced after 30 s", flush=True)
        for number, (kind, failpoint) in enumerate(cells):
            home = folder / f"{number}"
            home.mkdir()
            try:
                died = asyncio.run(
                    kill_at(SurfaceRealm(server, f"c{number}", home), failpoint, kind)
                )
                verdict = "as it should be" if died else "not reached"
            except AssertionError as wrong:
                clean, verdict = False, f"WRONG: {wrong}"
            print(f"{kind:7} {failpoint:24} {verdict}", flush=True)
    return clean


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        clean = campaign(Path(folder))
    print("each program saw one set of tools" if clean else "NOT CLEAN")
    return 0 if clean else 1


if __name__ == "__main__":
    sys.exit(main())
