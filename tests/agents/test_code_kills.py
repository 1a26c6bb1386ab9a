"""A node may die while a model acts in a program. The long form: ``make chaos``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rookery.bus.server.server import EmbeddedServer
from tests.agents.code_kills import faults, kill_at

CELLS = {"call_ended@1": "python", "appended@7": "typescript", "evolved@12": "python"}


@pytest.mark.parametrize("failpoint", CELLS)
def test_a_program_of_a_model_goes_on_wherever_its_node_dies(
    server: EmbeddedServer, tmp_path: Path, failpoint: str
):
    story = asyncio.run(kill_at(server, tmp_path, failpoint, CELLS[failpoint]))
    assert faults(story) == []
    assert story.killed
