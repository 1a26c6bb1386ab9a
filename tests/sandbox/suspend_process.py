"""A process that runs a program until it is suspended and then waits to be killed; and a process
that resumes it. ``python -m tests.sandbox.suspend_process start|finish PROGRAM SNAPSHOT``.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import msgspec

from rookery.actors.sandbox import SuspendedRun, ToolResult, open_sandbox
from rookery.schemas.run import RunResult
from tests.sandbox.modes import HAS_FIBERS
from tests.sandbox.programs import CLOSURES, PROGRAMS
from tests.sandbox.session_fixture import KEY, TOOLS, Stage, later


class Report(msgspec.Struct):
    """The results that must be equal in every process."""

    result: RunResult
    snapshot_id: str


def start(program: str, snapshot: Path) -> None:
    code, slow = PROGRAMS[program]
    with open_sandbox(KEY, has_fibers=HAS_FIBERS) as sandbox:
        stage = Stage(sandbox, "sleeper")
        stage.run(CLOSURES)
        waiting = stage.wait(code, answer=later(slow))
        snapshot.write_bytes(sandbox.snapshot("sleeper").data)
        sys.stdout.write(f"{waiting.calls[0].id}\n")
        sys.stdout.flush()
        threading.Event().wait()


def finish(program: str, snapshot: Path) -> None:
    with open_sandbox(KEY, has_fibers=HAS_FIBERS) as sandbox:
        sandbox.restore(snapshot.read_bytes(), tools=TOOLS)
        report = finished(Stage(sandbox, "sleeper", create=False), program)
    sys.stdout.buffer.write(msgspec.json.encode(report))


def finished(stage: Stage, program: str) -> Report:
    """Resume the program with the result of its call, and read the state of the session."""
    _, slow = PROGRAMS[program]
    number = {"approve": 7, "write": 21}[slow]
    outcome = stage.resume(answers={number: ToolResult("yes", duration_ms=3)}, answer=later())
    assert not isinstance(outcome, SuspendedRun)
    return Report(outcome, stage.sandbox.snapshot(stage.name).id)


if __name__ == "__main__":
    {"start": start, "finish": finish}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
