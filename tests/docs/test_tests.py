"""The suite itself: files are found whatever order and machine they are collected on, and nothing
that a test has started outlives pytest."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.stock_client import until

TESTS = Path(__file__).parents[1]
STARTS = """
import subprocess, sys

def test_starts_what_does_not_end(tmp_path):
    program = "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', 'input()'])"
    command = [sys.executable, "-S", "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as started:
        print(started.pid, flush=True)
        started.wait()
"""


def test_no_two_test_files_have_the_same_name():
    """pytest imports them by it, and which of two it finds depends on what ran before."""
    names = Counter(path.name for path in TESTS.rglob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []


def test_a_pytest_that_is_killed_leaves_no_process(tmp_path: Path):
    file = tmp_path / "test_starts.py"
    file.write_text(STARTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-c", str(TESTS.parent / "pyproject.toml"), "-s"]
    command += ["-p", "tests.conftest", "-p", "no:cacheprovider", "-p", "no:xdist", str(file)]
    with subprocess.Popen(command, cwd=TESTS.parent, stdout=subprocess.PIPE, text=True) as inner:
        assert inner.stdout is not None
        started = inner.stdout.readline().strip()
        children = Path(f"/proc/{started}/task/{started}/children")
        child = asyncio.run(until(lambda: children.read_text().strip()))
        assert runs(started)
        assert runs(child)
        inner.kill()
    asyncio.run(until(lambda: not runs(started) and not runs(child), "the sweeper"))


def runs(pid: str) -> bool:
    """Whether there is a process, and not only its number until its parent looks for its end."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except OSError:
        return False
