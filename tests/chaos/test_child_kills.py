"""Two nodes may die while parents and children are spread over them. Long form: ``make chaos``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rookery.bus.server.server import EmbeddedServer
from tests.chaos.child_kills import faults, kill_at


@pytest.mark.parametrize("failpoint", ["child_started@1", "child_ended@2"])
def test_a_call_has_one_child_and_one_result_wherever_nodes_die(
    server: EmbeddedServer, tmp_path: Path, failpoint: str
):
    story = asyncio.run(kill_at(server, tmp_path, failpoint))
    assert faults(story) == []
    assert story.killed
