"""A campaign ends with its last cell: it names each that is not clean, and counts what it ran."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from pathlib import Path

import pytest

from rookery.actors.kernel.executors.failpoints import (
    AGENT_FAILPOINTS,
    FAILPOINTS,
    HANDLER_FAILPOINTS,
    HOOK_FAILPOINTS,
    MODEL_FAILPOINTS,
    PEER_FAILPOINTS,
    RUN_FAILPOINTS,
    SURFACE_FAILPOINTS,
)
from tests.agents import code_kills, model_kills
from tests.chaos import agent_kills, hook_kills, node_kills, peer_kills, run_kills, surface_kills
from tests.chaos.cells import CELL_S, Campaign, Verdict, places, spread


async def verdict(cell: str, folder: Path) -> Verdict:
    assert folder.is_dir()
    match cell:
        case "raises":
            raise ConnectionError("nobody answers")
        case "lasts":
            await asyncio.sleep(60)
        case "not reached":
            return Verdict([], killed=False)
    return Verdict(["lost"] if cell == "loses" else [])


def ran(
    folder: Path, *cells: str, minutes: float = 1.0, words: tuple[str, ...] = (), cell_s=CELL_S
) -> int:
    campaign = Campaign(Namespace(minutes=minutes, cells=words), folder, cell_s)
    asyncio.run(campaign.judge(cells, verdict))
    return campaign.ended()


@pytest.mark.parametrize("cell", ["raises", "lasts", "not reached", "loses"])
def test_a_cell_that_is_not_clean_fails_the_campaign_and_the_next_one_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cell: str
):
    assert ran(tmp_path, cell, "sound", cell_s=0.05) == 1
    *lines, total = capsys.readouterr().out.splitlines()
    assert "as it should be" not in lines[0]
    assert "as it should be" in lines[1]
    assert total == "2 cells asked, 2 run, 1 clean"


def test_cells_that_were_not_run_are_counted_and_a_campaign_of_none_is_not_clean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert ran(tmp_path, "", "sound", words=("sound",)) == 0
    assert ran(tmp_path, "sound", minutes=0) == 1
    totals = [line for line in capsys.readouterr().out.splitlines() if "asked" in line]
    assert totals == ["1 cells asked, 1 run, 1 clean", "1 cells asked, 0 run, 0 clean"]


def test_kills_are_spread_from_the_first_pass_to_the_last_at_every_place_in_turn():
    assert (spread(26, 5), spread(3, 5), spread(1, 4)) == ([1, 7, 13, 19, 26], [1, 2, 3], [1])
    assert places({"early": 9, "rare": 1}, 3) == ["early@1", "rare@1", "early@5", "early@9"]


def test_every_failpoint_of_what_a_campaign_kills_has_its_passes():
    steps = {*FAILPOINTS}
    assert {*node_kills.PASSES} == steps
    assert {*run_kills.PASSES} == steps | {*RUN_FAILPOINTS}
    assert {*model_kills.PASSES} == steps | {*RUN_FAILPOINTS, *MODEL_FAILPOINTS}
    assert {*code_kills.PASSES} == steps | {*RUN_FAILPOINTS, *MODEL_FAILPOINTS}
    assert {*surface_kills.PASSES} == steps | {*RUN_FAILPOINTS, *SURFACE_FAILPOINTS}
    assert {*peer_kills.PASSES} == steps | {*PEER_FAILPOINTS}
    assert {*peer_kills.PASSES_OF_PROGRAMS} >= steps | {*PEER_FAILPOINTS, *HANDLER_FAILPOINTS}
    assert {*hook_kills.PASSES} >= {*HOOK_FAILPOINTS}
    assert {*agent_kills.PASSES} >= {*AGENT_FAILPOINTS}
