"""Forks the processes of benches from one that has imported Rookery: a third to one second of CPU
less each. `test_a_harness_leaves_nothing_behind` starts them as users do."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from rookery.ops.bench.harness.harness import BenchProcess, start_process
from rookery.ops.bench.harness.load import Task
from tests.forkserver import Forked, can_fork, fork

__all__ = ["fork_process"]

MAIN = "rookery.ops.bench.__main__:main"


class ForkedBench:
    """What a harness uses of ``subprocess.Popen``. Its errors are those of the test."""

    def __init__(self, role: str, task: Task) -> None:
        reads, writes = os.pipe()
        self.stdin = os.fdopen(writes, "w", encoding="utf-8")
        with os.fdopen(reads, "rb"):
            self._process: Forked = fork(
                (role, msgspec.json.encode(task).decode()),
                env=os.environ,
                cwd=Path.cwd(),
                stdin=reads,
                stderr=2,
                main=MAIN,
            )
        self.stdout = self._process.stdout
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.returncode

    def communicate(self, *, timeout: float | None = None) -> tuple[str, None]:
        self.stdin.close()
        with self.stdout:
            output = self.stdout.read()
        self.wait(timeout)
        return output, None

    def wait(self, timeout: float | None = None) -> int:
        return self._process.wait(timeout)

    def kill(self) -> None:
        self._process.kill()


def fork_process(role: str, task: Task) -> BenchProcess:
    return ForkedBench(role, task) if can_fork(os.environ) else start_process(role, task)
