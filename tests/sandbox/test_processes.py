"""A run that began in one process ends in another, with the same fuel and the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from rookery.actors.sandbox import Sandbox
from tests.sandbox.programs import CLOSURES, PROGRAMS, without_time
from tests.sandbox.session_fixture import Stage, later
from tests.sandbox.suspend_process import Report, finished

CHECKOUT = Path(__file__).parents[2]


def sleeper(act: str, program: str, snapshot: Path, hash_seed: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.sandbox.suspend_process", act, program, str(snapshot)]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    return subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_suspended_run_finishes_after_its_process_is_killed(
    sandbox: Sandbox, tmp_path: Path, program: str
):
    snapshot = tmp_path / "snapshot"
    first = sleeper("start", program, snapshot, 1)
    assert first.stdout is not None
    line = first.stdout.readline()
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    first.stdout.close()

    second = sleeper("finish", program, snapshot, 2)
    reported, _ = second.communicate(timeout=60)
    assert second.returncode == 0
    there = msgspec.json.decode(reported, type=Report)

    stage = Stage(sandbox, "sleeper")
    stage.run(CLOSURES)
    code, slow = PROGRAMS[program]
    waiting = stage.wait(code, answer=later(slow))
    assert line.decode().strip() == str(waiting.calls[0].id)
    here = finished(stage, program)
    stage.end()
    assert here.result.metrics.instructions > 1_000_000
    assert without_time(here.result) == without_time(there.result)
    assert here.snapshot_id == there.snapshot_id
