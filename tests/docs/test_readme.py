"""The README and its pages are true: every proof, path and command they name exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {
    path.name: path.read_text(encoding="utf-8")
    for path in (ROOT / "README.md", *sorted((ROOT / "ops" / "docs").glob("*.md")))
}
pages = pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)


@pages
def test_every_test_named_as_a_proof_exists(page: str):
    for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page):
        source = (ROOT / path).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in source, f"{path} has no {name}"


@pages
def test_every_path_named_exists(page: str):
    named = re.findall(r"`((?:schemas|bus|actors|ops|tests)/[\w./-]*)`", page)
    missing = [path for path in named if not (ROOT / path).exists()]
    assert not missing


@pages
def test_every_command_shown_exists(page: str):
    shown = set(
        re.findall(r"rookery ((?:[a-z]+ ?){1,3})", " ".join(re.findall(r"`([^`]+)`", page)))
    )
    groups = {text.split()[0] for text in shown}
    listing = subprocess.run(
        [sys.executable, "-m", "rookery.ops.cli", "--help"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    unknown = [group for group in groups if group not in listing]
    assert not unknown


def test_the_glossary_has_some_forty_words_and_each_once():
    glossary = README.partition("## Glossary")[2].partition("\n## ")[0]
    words = re.findall(r"\*\*([a-z ]+)\*\*: ", glossary)
    assert 30 < len(words) <= 43
    assert len(set(words)) == len(words)


def test_the_readme_has_at_most_200_lines():
    assert len(README.splitlines()) <= 200
