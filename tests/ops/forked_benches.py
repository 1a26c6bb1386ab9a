"""Forks the processes of benches from one that has imported Rookery: a third to one second of CPU
less each. `test_a_harness_leaves_nothing_behind` starts them as users do."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from rookery.ops.bench.harness.harness import BenchProcess, start_process
from rookery.ops.bench.harness.load import Task
from tests.forkserver import can_fork, fork_piped

__all__ = ["fork_process"]

MAIN = "rookery.ops.bench.__main__:main"


def fork_process(role: str, task: Task) -> BenchProcess:
    """Its errors are those of the test."""
    if not can_fork(os.environ):
        return start_process(role, task)
    arguments = (role, msgspec.json.encode(task).decode())
    return fork_piped(arguments, env=os.environ, cwd=Path.cwd(), stderr=2, main=MAIN)
