"""Kill the node at every place where adding or removing a surface could lose something.

A session calls a tool of a surface that is added and removed, of workers or of an MCP server, while
the node is killed at one failpoint. Another node takes its place. Every request is repeated until a
node answers it.

    python -m tests.chaos.surface_kills [times each] [--minutes M] [--cells WORD ...]
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from itertools import count, pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from rookery.bus.server.server import EmbeddedServer
from tests.chaos.cells import Campaign, Verdict, options, places, run_campaign
from tests.chaos.cut_realm import CLOCK
from tests.mcp_client.server_fixtures import HOSTILE
from tests.nodes import NotReady, has_died, replace_node
from tests.stock_client import Stock
from tests.surfaces.surface_realm import WORKER, SurfaceRealm, begin, change, run

__all__ = ["KINDS", "LOCAL", "force_removal", "kill_at"]

SESSION = "mortal"
PASSES: Final = {
    "pulled": 4,
    "decided": 50,
    "effect_started": 15,
    "facts_held": 7,
    **dict.fromkeys(("append_sent", "appended", "acked", "evolved", "replied"), 14),
    **dict.fromkeys(("catalogue_listed", "catalogue_recorded", "surfaces_taken_up"), 2),
    **dict.fromkeys(("surface_connected", "surface_completed", "surface_settled"), 1),
    **dict.fromkeys(("call_ended", "outcome_passed"), 1),
}
"""How often the two changes pass each failpoint at least, however their commits meet."""


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
FORCED: Final = "a removal is forced"
FORCED_MS: Final = 30_000


LOCAL: Final = "local"
"""The surface of the nodes' own functions."""
LOSING: Final = """
said = ""
while not said:
    await sleep(0.5)
    try:
        await work(0)
    except Exception as error:
        said = str(error)
said
"""
REFUSALS: Final = ("UNKNOWN_TOOL", "SURFACE_UNAVAILABLE")
_FINAL: Final = "surface.removal_f"


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
    """Add a surface, call its tool and remove it, or remove the functions of nodes and return them;
    whether the node has died at the failpoint. Raises ``AssertionError`` for what is lost, repeated
    or not removed."""
    start = realm.node_with_functions if kind == LOCAL else realm.node
    mortal, successor = start(ROOKERY_FAILPOINT=failpoint), start()
    with ExitStack() as opened:
        if kind == "worker":
            opened.enter_context(realm.worker("desk"))
        opened.enter_context(closing(mortal))
        opened.enter_context(closing(successor))
        with suppress(NotReady):  # It may come to its point while it starts.
            await asyncio.to_thread(mortal.start)
        replacing = asyncio.create_task(replace_node(mortal, successor))
        try:
            async with realm.client() as client:
                if kind == LOCAL:
                    await _remove_return(client, realm)
                    await _check_functions(client, realm)
                else:
                    await _add_call_remove(client, KINDS[kind])
                    await _until_fact(client, realm, "surface.removal_finalized.v1", 1)
                    await _check_facts(client, realm)
            return await has_died(mortal)
        finally:
            replacing.cancel()
            with suppress(asyncio.CancelledError):
                await replacing


async def force_removal(realm: SurfaceRealm, behind_s: int = 0) -> None:
    """A removal is forced after its 30 s; the call that it does not wait for longer ends. The timer
    is the server's: to it, the time of a node whose clock is ``behind_s`` late comes sooner."""
    clock = realm.folder / "clock"
    clock.mkdir()
    (clock / "sitecustomize.py").write_text(CLOCK)
    (clock / "shift").write_text(str(-behind_s))
    late = {"PYTHONPATH": str(clock), "CUT_CLOCK": str(clock / "shift")} if behind_s else {}
    with realm.worker("desk"), realm.node(**late):
        async with realm.client() as client:
            assert not (await change(client, "add", add={"desk": WORKER})).code
            running = begin(client, SESSION, HELD, name="held")
            await realm.began(1)
            assert not (await change(client, "remove", remove=["desk"])).code
            await _until_fact(client, realm, "surface.removal_forced.v1", 1)
            facts = await realm.facts(client, "surface", SESSION)
            applied = [f for f in facts if f["type"] == "surface.boundary_applied.v1"][-1]
            forced = next(f for f in facts if f["type"] == "surface.removal_forced.v1")
            waited_ms = forced["at_ms"] - applied["at_ms"]
            assert waited_ms >= FORCED_MS - 1_000 * behind_s, "not before its time"
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


async def _remove_return(client: Stock, realm: SurfaceRealm) -> None:
    """Remove the functions of nodes under a run that calls one, and return them."""
    sees = "'work' in [tool['name'] for tool in list_tools()]"
    assert (await run(client, SESSION, "await work(0)", "first"))["result"] == 0
    running = begin(client, SESSION, LOSING, name="losing")
    while realm.calls("began")[0] < 2:  # It has begun with them, on whichever node.
        await asyncio.sleep(0.05)
    assert not (await change(client, "remove", remove=[LOCAL])).code
    said = (await running)["result"]
    assert said.startswith("SURFACE_"), said
    assert (await run(client, SESSION, sees, "without"))["result"] is False
    assert (await run(client, SESSION, "await work(0)", "refused"))["error"]["code"] in REFUSALS
    assert not (await change(client, "add", add={LOCAL: {"kind": "local"}})).code
    assert (await run(client, SESSION, sees, "sees"))["result"] is True
    assert (await run(client, SESSION, "await work(0)", "again"))["result"] == 0


async def _check_functions(client: Stock, realm: SurfaceRealm) -> None:
    catalogue = await realm.facts(client, "surface", "_realm")
    kinds = [fact["type"] for fact in catalogue]
    assert kinds == ["surface.dropped.v1", "surface.catalogued.v1"], "each change is made once"
    removed, returned = (fact["sequence_of_message"] for fact in catalogue)
    surface = await realm.facts(client, "surface", SESSION)
    epochs = [fact["epoch"] for fact in surface if "epoch" in fact]
    assert all(one <= after for one, after in pairwise(epochs)), epochs
    ends = [f["sequence_of_message"] for f in surface if f["type"].startswith(_FINAL)]
    assert len(ends) <= 1, "none if the node has died before the run could lose them"
    calls = await realm.facts(client, "turn", SESSION)
    intents = [f["sequence_of_message"] for f in calls if f["type"] == "tool.intent_recorded.v1"]
    after = ends[0] if ends else returned
    assert removed < returned
    assert not [one for one in intents if after < one < returned], "no call begins without them"


async def campaign(asked: Campaign) -> None:
    """Every failpoint with every kind of surface, and a removal that is forced."""
    with EmbeddedServer(asked.folder / "store", admin=True) as server:
        realms = count(1)

        async def verdict(cell: str, folder: Path) -> Verdict:
            realm = SurfaceRealm(server, f"c{next(realms)}", folder)
            if cell == FORCED:
                await force_removal(realm)
                return Verdict([])
            kind, failpoint = cell.split()
            return Verdict([], killed=await kill_at(realm, failpoint, kind))

        found = places(PASSES, asked.options.times)
        cells = [f"{kind} {place}" for place in found for kind in (*KINDS, LOCAL)]
        await asked.judge([FORCED, *cells], verdict)


if __name__ == "__main__":
    sys.exit(run_campaign(options("tests.chaos.surface_kills", times=6), campaign))
