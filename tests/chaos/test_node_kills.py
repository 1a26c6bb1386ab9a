"""A node may die anywhere, and the facts do not show it. The long form: ``make chaos``."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rookery.actors.kernel.executors.failpoints import FAILPOINTS
from rookery.bus.server.server import EmbeddedServer
from tests.chaos.node_kills import PASSES, Outcome, faults, kill_at, undisturbed


@pytest.fixture(scope="session")
def calm(server: EmbeddedServer, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return asyncio.run(undisturbed(server, tmp_path_factory.mktemp("calm")))


def test_an_undisturbed_run_does_what_the_story_says(calm: Outcome):
    told = calm.answers["one"]
    assert {told[id_] for id_ in "abdehij"} == {"committed"}
    assert (told["c"], told["f"], told["g"], told["k"]) == (
        "cancelled", "refused", "refused", "GUARD_REJECTED",
    )  # fmt: skip
    assert calm.doubles == []


@pytest.mark.parametrize("failpoint", FAILPOINTS)
def test_a_node_killed_at_any_point_leaves_what_an_undisturbed_run_leaves(
    server: EmbeddedServer, calm: Outcome, tmp_path: Path, failpoint: str
):
    cell = asyncio.run(kill_at(server, tmp_path, f"{failpoint}@{PASSES[failpoint] // 2}"))
    assert faults(cell, calm) == []
