"""A node may die while a model drives its runs. The long form: ``make chaos``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rookery.bus.server.server import EmbeddedServer
from tests.agents.model_kills import faults, kill_at

CELLS = (
    "",
    "model_request_recorded@2",
    "model_answered@5",
    "outcome_passed@2",
    "appended@6",
)


@pytest.mark.parametrize("failpoint", CELLS)
def test_questions_are_on_record_before_they_leave_wherever_their_node_dies(
    server: EmbeddedServer, tmp_path: Path, failpoint: str
):
    story = asyncio.run(kill_at(server, tmp_path, failpoint))
    assert faults(story) == []
    assert story.killed == bool(failpoint)
