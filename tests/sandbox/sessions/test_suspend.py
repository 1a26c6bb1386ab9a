"""Suspended runs: resumed from an image at an awaited call, else from the log."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rookery.actors.sandbox import Sandbox, SuspendedRun, ToolResult
from rookery.actors.sandbox.sessions.snapshot import (
    SavedSession,
    SnapshotHeader,
    open_snapshot,
    seal,
)
from rookery.schemas.errors import Failed
from tests.sandbox.programs import CALLS, CLOSURES, PROGRAMS, without_time
from tests.sandbox.session_fixture import KEY, TOOLS, Stage, later


def rest(stage: Stage) -> None:
    """Snapshot and restore the session."""
    taken = stage.sandbox.snapshot(stage.name)
    stage.end()
    stage.sandbox.restore(taken.data, tools=TOOLS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_suspended_run_ends_like_an_uninterrupted_one(stage: Stage, sandbox: Sandbox, name: str):
    code, slow = PROGRAMS[name]
    awake = Stage(sandbox, stage.name + "-awake")
    awake.run(CLOSURES)
    answered = awake.run(code, answer=lambda c: ToolResult("yes") if c.name == slow else later()(c))
    stage.run(CLOSURES)
    waiting = stage.wait(code, answer=later(slow))
    (call,) = waiting.calls
    assert (call.name, call.awaited) == (slow, name == "awaited")
    rest(stage)
    outcome = stage.resume(answers={call.id: ToolResult("yes")}, answer=later())
    assert without_time(outcome) == without_time(answered)
    assert outcome.stdout == "begin\nend\n"
    assert stage.value("[c(), next(squares)]") == awake.value("[c(), next(squares)]")
    awake.end()


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_limit_after_a_suspension_undoes_the_whole_run(stage: Stage, name: str):
    code, slow = PROGRAMS[name]
    stage.run(CLOSURES + "x = ['kept']")
    endless = "x.append(1)\n" + code + "\nwhile True: pass"
    waiting = stage.wait(endless, later(slow), limits={"cpu_ms": 200})
    rest(stage)
    outcome: Any = stage.resume(answers={waiting.calls[0].id: ToolResult(1)}, answer=later())
    assert outcome.error.code == "TIMEOUT_CPU"
    assert outcome.stdout == "begin\nend\n"
    assert stage.value("[x, c(), next(squares)]") == [["kept"], 2, 4]


def test_a_run_can_be_suspended_at_every_call(stage: Stage, sandbox: Sandbox):
    """Both kinds of calls are mixed."""
    code = "a = add(1)\nb = await fetch(a)\nd = add(b)\ne = await fetch(d)\n[a, b, d, e, add(e)]"
    outcome: Any = stage.try_run(code, answer=later("add", "fetch"))
    for value in range(10, 15):
        assert isinstance(outcome, SuspendedRun)
        rest(stage)
        outcome = stage.resume(answers={outcome.calls[0].id: ToolResult(value)})
    assert outcome.result == [10, 11, 12, 13, 14]
    assert [record.name for record in outcome.external_calls] == [
        "add",
        "fetch",
        "add",
        "fetch",
        "add",
    ]
    assert stage.value("[a, e]") == [10, 13]


def test_a_suspended_run_that_fails_preserves_its_effects(stage: Stage):
    stage.wait("x = 1\ny = await approve(1)\n1/0", answer=later("approve"))
    rest(stage)
    outcome: Any = stage.resume(5)
    assert outcome.error.code == "RUNTIME_ERROR"
    assert stage.value("[x, y]") == [1, 5]


def test_advanced_time_counts_as_wall_time(stage: Stage):
    code = "import asyncio, time\nt = time.time()\n"
    code += "try: await asyncio.wait_for(approve(1), 90)\nexcept TimeoutError: pass\n"
    waiting = stage.wait(code + "round(time.time() - t)", answer=later("approve"))
    assert waiting.timer_ms == 90_000
    rest(stage)
    assert isinstance(stage.sandbox.resume(stage.name, advance_ms=2_000), SuspendedRun)
    outcome: Any = stage.sandbox.resume(stage.name, advance_ms=88_000)
    assert outcome.error.code == "TIMEOUT_WALL"


def test_a_timer_within_the_wall_time_is_an_ordinary_exception(stage: Stage):
    code = "import asyncio, time\nt = time.time()\n"
    code += "try: await asyncio.wait_for(approve(1), 2)\nexcept TimeoutError: pass\n"
    stage.wait(code + "round(time.time() - t)", answer=later("approve"))
    rest(stage)
    assert isinstance(stage.sandbox.resume(stage.name, advance_ms=1500), SuspendedRun)
    assert stage.sandbox.resume(stage.name, advance_ms=500).result == 2


def test_time_before_a_result_is_counted_once(stage: Stage):
    code = "import asyncio, time\nt = time.time()\n"
    code += "async def nap(): await asyncio.sleep(3)\n"
    code += "both = await asyncio.gather(approve(1), nap())\n"
    waiting = stage.wait(code + "[both, round(time.time() - t)]", answer=later("approve"))
    (call,) = waiting.calls
    assert isinstance(stage.sandbox.resume(stage.name, advance_ms=3_000), SuspendedRun)
    answers = {call.id: ToolResult("yes", duration_ms=4_000)}
    outcome: Any = stage.sandbox.resume(stage.name, answers, advance_ms=1_000)
    assert outcome.result == [["yes", None], 4], "of five seconds"
    assert outcome.metrics.duration_ms < 7_000


@pytest.mark.parametrize("field", ["name", "digest"])
def test_a_replay_with_another_call_is_refused_and_the_run_waits(
    stage: Stage, sandbox: Sandbox, field: str
):
    waiting = stage.wait(CLOSURES + CALLS, answer=later("write"))
    header, saved = open_snapshot(KEY, sandbox.snapshot(stage.name).data, sandbox.require, OFFERED)
    assert saved.turn is not None
    entry = saved.turn.log.entries[7]
    saved.turn.log.entries[7] = msgspec.structs.replace(entry, **{field: "0" * 64})
    forged = seal(KEY, header, saved)
    for _ in range(2):
        sandbox.restore(forged.data, tools=TOOLS)
        with pytest.raises(Failed) as failed:
            stage.resume(answers={waiting.calls[0].id: ToolResult("yes")})
        assert failed.value.code == "REPLAY_DIVERGED"
    taken = sandbox.snapshot(stage.name)
    assert open_snapshot(KEY, taken.data, sandbox.require, OFFERED)[1].turn == saved.turn
    sandbox.cancel(stage.name)
    assert stage.value("1") == 1


def test_a_history_with_another_call_is_never_continued(stage: Stage, sandbox: Sandbox):
    stage.run("x = add(1)")
    stage.wait("add(x)", answer=later("add"))
    header, saved = opened(sandbox, stage)
    (log,) = saved.history
    log.program = log.program.replace(b"add(1)", b"add(2)")
    sandbox.restore(seal(KEY, header, saved).data, tools=TOOLS)
    with pytest.raises(Failed) as failed:
        stage.resume(5)
    assert failed.value.code == "REPLAY_DIVERGED"
    sandbox.cancel(stage.name)
    for _ in range(2):
        with pytest.raises(Failed) as failed:
            stage.run("1")
        assert failed.value.code == "REPLAY_DIVERGED"


OFFERED = {tool.name: tool for tool in TOOLS}


def opened(sandbox: Sandbox, stage: Stage) -> tuple[SnapshotHeader, SavedSession]:
    return open_snapshot(KEY, sandbox.snapshot(stage.name).data, sandbox.require, OFFERED)
