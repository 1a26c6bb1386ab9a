"""Journal and till agree, whatever is killed. The long form: ``make chaos``."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.chaos.till import faults, trade

RUNS = 40


def test_what_the_till_did_is_what_the_journal_says(tmp_path: Path):
    accounts = asyncio.run(trade(tmp_path, runs=RUNS, sessions=8, kills=1))
    assert faults(accounts, RUNS) == []
