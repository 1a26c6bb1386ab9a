"""Programs as models write them have the same results in the sandbox as in CPython.

CPython runs them in another process, which gives every program its own ``/work`` and ``/tmp``.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.corpus_runner import Outcome, named, programs
from tests.sandbox.session_fixture import Stage

CORPUS = Path(__file__).with_name("python_corpus")
PROGRAMS = programs(CORPUS)


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outcome]]:
    """The results of all programs in CPython."""
    output = subprocess.run(
        [sys.executable, "-m", "tests.sandbox.corpus_runner", str(CORPUS)],
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
        env={"PYTHONHASHSEED": "0", "TZ": "UTC", "TMPDIR": str(tmp_path_factory.mktemp("native"))},
        cwd=Path(__file__).parents[2],
    ).stdout
    return named(json.loads(output))


def test_the_corpus_is_large_enough():
    assert len(PROGRAMS) >= 200


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_has_the_same_results_as_in_cpython(
    stage: Stage, native: dict[str, list[Outcome]], name: str
):
    for code, expected in zip(PROGRAMS[name], native[name], strict=True):
        outcome = stage.run(code, limits={"cpu_ms": 20_000, "wall_ms": 60_000})
        assert outcome.error is None, outcome.error
        assert (outcome.result, outcome.stdout) == (expected.value, expected.stdout)
