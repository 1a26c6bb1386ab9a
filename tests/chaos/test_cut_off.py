"""A node that is cut off or paused does nothing more, and nothing it left behind is lost.

Each recipe stops one node at the very message that matters; the other one takes over. No call is
executed without its intent, twice, or after its recovery was answered; every run ends, and every
client is answered. The long form: ``make chaos``.
"""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

from rookery.bus.server.server import EmbeddedServer
from tests.chaos.cut_off import RECIPES, cook
from tests.chaos.cut_realm import CutRealm

CLAIM_S = 2

_realms = count(1)


def test_a_node_that_was_cut_off_does_not_act_and_what_it_left_is_gone_on_with(
    server: EmbeddedServer, tmp_path: Path
):
    pairs = ("twice-hole", "lost-step"), ("late-arguments", "loose-end"), ("twice-reset", "paused")
    assert asyncio.run(_broken_rules(server, tmp_path, pairs)) == {}


def test_a_call_that_is_still_on_its_way_or_at_work_is_not_made_again(
    server: EmbeddedServer, tmp_path: Path
):
    pairs = ("late-job",), ("slow-tool",)
    assert asyncio.run(_broken_rules(server, tmp_path, pairs)) == {}


async def _broken_rules(
    server: EmbeddedServer, folder: Path, pairs: tuple[tuple[str, ...], ...]
) -> dict[str, list[str]]:
    """By recipe, what was not as its rule wants it; the recipes of a pair share two nodes."""
    broken: dict[str, list[str]] = {}

    async def on_one_pair_of_nodes(names: tuple[str, ...]) -> None:
        realm = f"cut{next(_realms)}"
        worker = any(RECIPES[name].worker for name in names)
        async with CutRealm(server, folder, realm, claim_s=CLAIM_S, worker=worker) as nodes:
            for name in names:
                outcome = await cook(nodes, RECIPES[name])
                if outcome.faults:
                    print(name, *outcome.faults, *outcome.lines, sep="\n")
                    broken[f"{name}: {RECIPES[name].rule}"] = outcome.faults

    async with asyncio.TaskGroup() as group:
        for names in pairs:
            group.create_task(on_one_pair_of_nodes(names))
    return broken
