"""TypeScript programs as models write them have the results and the output that node has.

``python -m tests.sandbox.typescript.node_recorder`` records them.
"""

from __future__ import annotations

import json

import pytest

from tests.sandbox.corpus_runner import Outcome, named, programs
from tests.sandbox.session_fixture import Stage
from tests.sandbox.typescript.node_recorder import PROGRAMS, RECORDED

RUNS = programs(PROGRAMS)


@pytest.fixture(scope="module")
def in_node() -> dict[str, list[Outcome]]:
    return named(json.loads(RECORDED.read_text(encoding="utf-8")))


def test_every_program_is_recorded(in_node: dict[str, list[Outcome]]):
    assert RUNS.keys() == in_node.keys()
    assert len(RUNS) >= 80


@pytest.mark.parametrize("name", RUNS)
def test_a_program_has_the_same_results_as_in_node(
    ts: Stage, in_node: dict[str, list[Outcome]], name: str
):
    for code, expected in zip(RUNS[name], in_node[name], strict=True):
        outcome = ts.run(code, limits={"cpu_ms": 20_000, "wall_ms": 60_000})
        assert outcome.error is None, outcome.error
        assert (outcome.result, outcome.stdout) == (expected.value, expected.stdout)
