"""A node may die while hooks change a run. The long form: ``make chaos``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rookery.bus.server.server import EmbeddedServer
from tests.chaos.hook_kills import faults, kill_at

CELLS = ("hook_invoked@4", "hook_answered@3", "hook_staged@2")


@pytest.mark.parametrize("failpoint", CELLS)
def test_no_call_is_made_with_arguments_that_are_not_on_record_or_twice(
    server: EmbeddedServer, tmp_path: Path, failpoint: str
):
    kill = asyncio.run(kill_at(server, tmp_path, failpoint))
    assert faults(kill) == []
    assert kill.killed
