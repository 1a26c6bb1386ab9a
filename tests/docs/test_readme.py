"""The README says only what is true: every proof it names exists, every path, every command."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_test_named_as_a_proof_exists():
    for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", README):
        source = (ROOT / path).read_text(encoding="utf-8")
        assert not name or f"def {name}(" in source, f"{path} has no {name}"


def test_every_path_it_sends_people_to_exists():
    named = re.findall(r"`((?:schemas|bus|actors|ops|tests)/[\w./-]*)`", README)
    missing = [path for path in named if not (ROOT / path).exists()]
    assert not missing


def test_every_command_it_shows_is_known():
    shown = set(
        re.findall(r"rookery ((?:[a-z]+ ?){1,3})", " ".join(re.findall(r"`([^`]+)`", README)))
    )
    groups = {text.split()[0] for text in shown}
    listing = subprocess.run(
        [sys.executable, "-m", "rookery.ops.cli", "--help"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    unknown = [group for group in groups if group not in listing]
    assert not unknown


def test_it_stays_short_enough_to_be_read():
    assert len(README.splitlines()) <= 200
