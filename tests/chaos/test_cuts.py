"""The sweep of cuts in short, and how its results are kept. The long form: ``make chaos``."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rookery.bus.server.server import EmbeddedServer
from tests.chaos.cut_cells import CELLS, Cell, Cut, Results
from tests.chaos.cut_realm import CutRealm
from tests.chaos.cuts import cut_once

CLAIM_S = 2
HOLE, STOP = (
    Cell("hole", "aimed", "waiting", "default", 2),
    Cell("stop", "5s", "local", "default", 2),
)


def test_sessions_of_a_node_that_is_cut_off_or_stopped_end_as_they_should(
    server: EmbeddedServer, tmp_path: Path
):
    """Of one node the line is cut while its runs wait for timers and approvals, another is stopped
    for five seconds in the middle of its calls."""

    async def cut(cell: Cell) -> Cut:
        realm = f"swept-{cell.mode}"
        async with CutRealm(server, tmp_path, realm, claim_s=CLAIM_S, tool_s=0.2) as nodes:
            return await cut_once(nodes, cell, "", number=0, runs=8)

    async def both() -> list[Cut]:
        return await asyncio.gather(cut(HOLE), cut(STOP))

    for found in asyncio.run(both()):
        print(*(line for story in found.stories.values() for line in story), sep="\n")
        assert found.faults == ()
        assert found.taken_over_s
        assert found.calls > 8


def a_cut(cell: Cell, *faults: tuple[str, str], tree: str = "tree") -> Cut:
    return Cut(tree=tree, claim_s=CLAIM_S, cell=cell.name, gone_s=1.0, faults=faults)


def test_a_sweep_goes_on_from_its_results_with_the_cells_in_turn(tmp_path: Path):
    cells = CELLS[:3]
    results = Results(tmp_path / "results", "tree", CLAIM_S)
    for cell in (*cells, cells[0]):
        results.add(a_cut(cell))
    again = Results(tmp_path / "results", "tree", CLAIM_S)
    assert list(again.to_do(cells, 1)) == []
    assert list(again.to_do(cells, 2)) == [cells[1], cells[2]]


def test_a_cell_is_clean_only_if_it_was_reached_and_no_cut_of_it_broke_a_rule(tmp_path: Path):
    clean, faulty, missed = cells = CELLS[:3]
    results = Results(tmp_path / "results", "tree", CLAIM_S)
    for cut in (a_cut(clean), a_cut(clean), a_cut(faulty, ("double", "twice")), a_cut(faulty)):
        results.add(cut)
    assert results.not_clean(cells, 2) == [
        f"{faulty.name}: double in 1 of 2 cuts",
        f"{missed.name}: not reached: 0 of 2 cuts",
    ]


def test_results_of_another_tree_or_another_claim_do_not_count(tmp_path: Path):
    results = Results(tmp_path / "results", "older", CLAIM_S)
    results.add(a_cut(CELLS[0], tree="older"))
    assert Results(tmp_path / "results", "tree", CLAIM_S).cuts == []
    assert Results(tmp_path / "results", "older", CLAIM_S + 1).cuts == []
    assert len(Results(tmp_path / "results", "older", CLAIM_S).cuts) == 1


def test_every_cell_has_a_name_of_its_own_and_its_cuts_differ():
    assert len({cell.name for cell in CELLS}) == len(CELLS)
    for cell in CELLS:
        seconds = {round(cell.seconds(number, 6), 3) for number in range(3)}
        assert len(seconds) == (1 if cell.mode == "stop" else 3)
    blind = [cell.seconds(n, 6) for cell in CELLS if cell.moment == "blind" for n in range(3)]
    assert 6.0 <= min(blind) < 6.5
    assert 12.5 < max(blind) <= 13.0
