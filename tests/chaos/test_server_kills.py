"""The server may die under load; what it vouched for is there. The long form: ``make chaos``."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.chaos.server_kills import run_campaign


def test_what_was_acked_or_answered_is_journaled_once_and_in_order(tmp_path: Path):
    report = asyncio.run(run_campaign(tmp_path, kills=2, commands_min=900))
    assert report.kills == 2
    assert report.journaled == report.accepted + report.answered >= 900
    assert min(report.accepted, report.answered) > 0
