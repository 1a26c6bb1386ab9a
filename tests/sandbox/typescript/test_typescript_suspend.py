"""Suspended runs of TypeScript, in this process and across processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rookery.actors.sandbox import Sandbox, SuspendedRun, ToolResult
from rookery.actors.sandbox.sessions.snapshot import open_snapshot, seal
from rookery.schemas.errors import Failed
from rookery.schemas.run import Language
from tests.sandbox.programs import without_time
from tests.sandbox.session_fixture import KEY, TOOLS, Stage, later
from tests.sandbox.suspend_process import Report
from tests.sandbox.typescript.typescript_programs import CALLS, CLOSURES, PROGRAMS, finished

CHECKOUT = Path(__file__).parents[3]
OFFERED = {tool.name: tool for tool in TOOLS}


def rest(stage: Stage) -> None:
    """Snapshot and restore the session."""
    taken = stage.sandbox.snapshot(stage.name)
    stage.end()
    stage.sandbox.restore(taken.data, tools=TOOLS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_suspended_run_ends_like_an_uninterrupted_one(ts: Stage, ts_sandbox: Sandbox, name: str):
    code, slow = PROGRAMS[name]
    awake = Stage(ts_sandbox, ts.name + "-awake", language=Language.TYPESCRIPT)
    awake.run(CLOSURES)
    answered = awake.run(code, answer=lambda c: ToolResult("yes") if c.name == slow else later()(c))
    assert answered.status == "ok", answered.error
    ts.run(CLOSURES)
    waiting = ts.wait(code, answer=later(slow))
    (call,) = waiting.calls
    assert (call.name, call.awaited) == (slow, name == "awaited")
    rest(ts)
    outcome = ts.resume(answers={call.id: ToolResult("yes")}, answer=later())
    assert without_time(outcome) == without_time(answered)
    assert outcome.stdout == "begin\nend\n"
    after = "[c(), g.next().value, account.add(1)]"
    assert ts.value(after) == awake.value(after)
    awake.end()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_limit_after_a_suspension_undoes_the_whole_run(ts: Stage, name: str):
    code, slow = PROGRAMS[name]
    ts.run(CLOSURES + "const x = ['kept']")
    endless = "x.push('lost')\n" + code + "\nwhile (true);"
    waiting = ts.wait(endless, later(slow), limits={"cpu_ms": 200})
    rest(ts)
    outcome: Any = ts.resume(answers={waiting.calls[0].id: ToolResult(1)}, answer=later())
    assert outcome.error.code == "TIMEOUT_CPU"
    assert outcome.stdout == "begin\nend\n"
    assert ts.value("[x, c(), g.next().value]") == [["kept"], 2, 4]


def test_a_run_can_be_suspended_at_every_call(ts: Stage):
    """Both kinds of calls are mixed."""
    code = "const a = add(1), b = await fetch(a), d = add(b), e = await fetch(d);"
    outcome: Any = ts.try_run(code + "[a, b, d, e, add(e)]", answer=later("add", "fetch"))
    for value in range(10, 15):
        assert isinstance(outcome, SuspendedRun)
        rest(ts)
        outcome = ts.resume(answers={outcome.calls[0].id: ToolResult(value)})
    assert outcome.result == [10, 11, 12, 13, 14]
    names = [record.name for record in outcome.external_calls]
    assert names == ["add", "fetch", "add", "fetch", "add"]
    assert ts.value("[a, e]") == [10, 13]


def test_a_sleeping_run_that_fails_keeps_what_it_did_and_knows_where(ts: Stage):
    ts.wait("let é: string, x = 1\nconst y = await approve(1)\nx = y; null.z", later("approve"))
    rest(ts)
    outcome: Any = ts.resume(5)
    assert outcome.error.code == "RUNTIME_ERROR"
    assert (outcome.error.span.line, outcome.error.span.column) == (3, 8)
    assert ts.value("[x, y]") == [5, 5]


def test_a_transformed_run_that_slept_knows_where_it_fails(ts: Stage):
    code = "enum E {\n  A, B\n}\n\nlet x: E = await approve(1)\n\nnull.foo"
    ts.wait(code, later("approve"))
    rest(ts)
    outcome: Any = ts.resume(1)
    assert (outcome.error.span.line, outcome.error.span.column) == (7, 1)
    assert ts.value("E[x]") == "B"


def test_a_timer_within_the_wall_time_wakes_the_program(ts: Stage):
    code = "const t = Date.now(), late = new Promise(r => setTimeout(r, 2000, 'late'))\n"
    code += "const first = await Promise.race([approve(1), late]);"
    ts.wait(code + "[first, Date.now() - t]", answer=later("approve"))
    rest(ts)
    assert isinstance(ts.sandbox.resume(ts.name, advance_ms=1500), SuspendedRun)
    assert ts.sandbox.resume(ts.name, advance_ms=500).result == ["late", 2000]


@pytest.mark.parametrize("field", ["name", "digest"])
def test_a_replay_with_another_call_is_refused_and_the_run_waits(
    ts: Stage, ts_sandbox: Sandbox, field: str
):
    waiting = ts.wait(CLOSURES + CALLS, answer=later("write"))
    taken = ts_sandbox.snapshot(ts.name).data
    header, saved = open_snapshot(KEY, taken, ts_sandbox.require, OFFERED)
    assert saved.turn is not None
    entry = saved.turn.log.entries[7]
    saved.turn.log.entries[7] = msgspec.structs.replace(entry, **{field: "0" * 64})
    ts_sandbox.restore(seal(KEY, header, saved).data, tools=TOOLS)
    with pytest.raises(Failed) as failed:
        ts.resume(answers={waiting.calls[0].id: ToolResult("yes")})
    assert failed.value.code == "REPLAY_DIVERGED"
    ts_sandbox.cancel(ts.name)
    assert ts.value("1") == 1


def test_the_same_runs_with_the_same_seed_make_the_same_bytes(ts_sandbox: Sandbox):
    code = "const y = [Math.random(), Date.now(), add(1), new Map([['a', 1]]).size]; y"
    made = {}
    for number, seed in enumerate((b"one", b"one", b"two")):
        stage = Stage(ts_sandbox, f"same{number}", seed=seed, language=Language.TYPESCRIPT)
        outcome = stage.run(code)
        taken = ts_sandbox.snapshot(stage.name).data
        header, saved = open_snapshot(KEY, taken, ts_sandbox.require, OFFERED)
        header = msgspec.structs.replace(header, session_id="same")
        made[number] = seal(KEY, header, saved).id, outcome.metrics.instructions, outcome.result
        stage.end()
    assert made[0] == made[1]
    assert made[0][0] != made[2][0]
    assert made[0][2] != made[2][2]


def test_chance_and_clock_travel_along(ts: Stage):
    code = "[Math.random(), Date.now()]"
    first = ts.value(code)
    taken = ts.sandbox.snapshot(ts.name)
    second = ts.value(code)
    ts.sandbox.restore(taken.data, tools=TOOLS)
    assert ts.value(code) == second != first


def test_a_snapshot_is_small(ts: Stage):
    assert len(ts.sandbox.snapshot(ts.name).data) < 1000
    ts.run("const x = { a: [1, 2, 3] }")
    assert len(ts.sandbox.snapshot(ts.name).data) < 100_000


def test_a_long_history_becomes_an_image_and_nothing_is_lost(ts: Stage):
    ts.run("let x = 0; const more = () => ++x")
    for n in range(120):
        assert ts.value("more()") == n + 1
    ts.run("while (true);", limits={"cpu_ms": 30})
    assert ts.value("[x, more()]") == [120, 121]


def sleeper(act: str, program: str, snapshot: Path, hash_seed: int) -> subprocess.Popen[bytes]:
    module = "tests.sandbox.typescript.typescript_programs"
    command = [sys.executable, "-m", module, act, program, str(snapshot)]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    return subprocess.Popen(command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_suspended_run_finishes_after_its_process_is_killed(
    ts_sandbox: Sandbox, tmp_path: Path, program: str
):
    """The same fuel, the same bytes."""
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

    stage = Stage(ts_sandbox, "sleeper", language=Language.TYPESCRIPT)
    stage.run(CLOSURES)
    code, slow = PROGRAMS[program]
    waiting = stage.wait(code, answer=later(slow))
    assert line.decode().strip() == str(waiting.calls[0].id)
    here = finished(stage, program)
    stage.end()
    assert here.result.metrics.instructions > 100_000
    assert without_time(here.result) == without_time(there.result)
    assert here.snapshot_id == there.snapshot_id
