"""The walk through a run, for those who read the code for the first time, leads where it says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from rookery.actors import execution

ACTORS = Path(__file__).parents[2] / "actors"
STEP = re.compile(r"^    ([\w/]+\.py) +([\w.]+) +(\w+) +(.+)$", re.MULTILINE)


def defined(path: Path) -> set[str]:
    """Functions, and methods as ``Class.method``."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if hasattr(part, "name")}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
    return found


def test_every_step_of_the_walk_is_where_it_says():
    steps = STEP.findall(execution.__doc__ or "")
    assert len(steps) > 15
    assert [step for step in steps if step[1] not in defined(ACTORS / step[0])] == []


def test_the_walk_counts_its_steps_and_files():
    of_sleeps = 3
    steps = STEP.findall(execution.__doc__ or "")[:-of_sleeps]
    files = {file for file, *_ in steps}
    assert f"has {len(steps)} of these steps, in {len(files)} files" in (execution.__doc__ or "")


def test_every_fact_of_the_walk_is_one():
    known = {
        name
        for path in (ACTORS.parent / "schemas" / "facts").glob("*.py")
        for name in re.findall(r'tag="([\w.]+)\.v1"', path.read_text(encoding="utf-8"))
    }
    told: set[str] = set()
    for _, _, family, said in STEP.findall(execution.__doc__ or ""):
        if family in ("loop", "actor"):
            continue
        for given, word in re.findall(r"(\w*)\.(\w+)", said):
            family = given or family  # noqa: PLW2901 - `.failed` is of the family before it.
            told.add(f"{family}.{word}")
    assert len(told) > 7
    assert told <= known
