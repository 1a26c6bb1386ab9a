"""Journal and till agree, whatever becomes of nodes. The long form: ``make chaos``."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.chaos.effect_audit import Disturbance, faults, trade

RUNS = 40


def test_what_the_till_did_is_what_the_journal_says(tmp_path: Path):
    accounts = asyncio.run(trade(tmp_path, runs=RUNS, sessions=8, disturbances=[Disturbance.KILL]))
    assert faults(accounts, RUNS) == []


def test_processes_of_a_node_that_die_one_by_one_and_together_change_nothing_of_that(
    tmp_path: Path,
):
    story = trade(
        tmp_path, runs=2 * RUNS, sessions=8, disturbances=[Disturbance.PART, Disturbance.KILL]
    )
    assert faults(asyncio.run(story), 2 * RUNS) == []


def test_nodes_that_leave_and_are_paused_change_nothing_of_that(tmp_path: Path):
    story = trade(
        tmp_path, runs=4 * RUNS, sessions=8, disturbances=[Disturbance.LEAVE, Disturbance.PAUSE]
    )
    assert faults(asyncio.run(story), 4 * RUNS) == []
