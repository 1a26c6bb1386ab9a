"""Every reachable state of every machine's small world, in both editions, beside the tables.

Goal: no way leads to a state that breaks an invariant, nothing anybody ever wrote fails to fold, a
refusal leaves nothing behind, and the committed tables are what the code does. One test does it
all for a machine, because exploring takes its time.
"""

from __future__ import annotations

import re

import pytest

from rookery.actors.kernel.machines.machine import HEAD, SEED, Edition
from rookery.actors.machine_catalogue import MACHINE_CATALOGUE
from rookery.ops.machines import tables
from rookery.ops.machines.exploration import explore
from tests.machines.oracle import MODEL

COMMITTED = tables.FILE.read_text(encoding="utf-8")
UNREACHABLE = {"turn_execution": {"ForceCancelNoRun"}}
"""It wants a host that runs without a run (machines.md, section 4)."""


def committed(name: str) -> str:
    return COMMITTED.partition(f"## {name}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("name", MACHINE_CATALOGUE)
@pytest.mark.parametrize("edition", [HEAD, pytest.param(SEED, marks=pytest.mark.long_form)])
def test_a_machine_breaks_no_rule_and_is_what_its_table_says(name: str, edition: Edition) -> None:
    explored = explore(MACHINE_CATALOGUE[name], edition)
    assert explored.violations == []
    rows = {row.name for row in explored.machine.transitions if row.edition in (None, edition)}
    assert rows - explored.rows == UNREACHABLE.get(name, set())
    assert tables.table(explored) in committed(name), "run `python -m rookery.ops.machines.tables`"


def test_the_tables_are_those_of_the_models_machines() -> None:
    assert re.findall(r"^## (\w+)$", COMMITTED, re.MULTILINE) == list(MACHINE_CATALOGUE)
    assert set(MACHINE_CATALOGUE) == set(MODEL)
