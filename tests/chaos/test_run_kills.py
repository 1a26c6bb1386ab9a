"""A node may die while programs call tools. The long form: ``make chaos``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rookery.bus.server.server import EmbeddedServer
from tests.chaos.run_kills import faults, kill_at

CELLS = (
    "",
    "append_sent@10",
    "acked@11",
    "effect_started@6",
    "evolved@13",
    "call_ended@4",
    "outcome_passed@5",
)


@pytest.mark.parametrize("failpoint", CELLS)
def test_runs_end_as_they_should_wherever_their_node_dies(
    server: EmbeddedServer, tmp_path: Path, failpoint: str
):
    story = asyncio.run(kill_at(server, tmp_path, failpoint))
    assert faults(story) == []
    assert story.killed == bool(failpoint)
