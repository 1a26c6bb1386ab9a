"""The suite itself: files are found whatever order and machine they are collected on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_no_two_test_files_have_the_same_name():
    """pytest imports them by it, and which of two it finds depends on what ran before."""
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []
