"""The short form of ``bus_fuzz``."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.bus_fuzz import bus_fuzz


def test_no_message_on_the_bus_stops_a_node_or_changes_an_answer(tmp_path: Path) -> None:
    assert bus_fuzz(tmp_path, messages=1_500, seed=7)
