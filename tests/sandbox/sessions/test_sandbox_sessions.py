"""Many sessions on few threads and little memory: every outcome reaches its own session."""

from __future__ import annotations

import threading
from concurrent.futures import Future, wait
from typing import Any

import pytest
import wasmtime

from rookery.actors.sandbox import Outcome, ProgramCall, Sandbox, ToolResult
from rookery.actors.sandbox.python.python_guest import PythonGuest
from rookery.schemas.calls import ToolFault
from rookery.schemas.errors import Refused
from rookery.schemas.run import RunRequest, RunResult, SessionLimits
from tests.sandbox.session_fixture import ANSWERS, KEY, NOW_MS, TOOLS, Stage, later

KINDS: dict[str, tuple[str, Any]] = {
    "value": ("[me, n, add(1)]", None),
    "tool error": ("add(0)", "TOOL_ERROR"),
    "own error": ("1/0", "RUNTIME_ERROR"),
    "dead": ("import inspect\ninspect.os._exit(0)", "RUNTIME_ERROR"),
    "memory": ("bytearray(99 << 20)", "MEMORY_EXCEEDED"),
    "calls": ("for i in range(9): add(1)", "EXTERNAL_CALLS_EXCEEDED"),
    "host bug": ("add(-1)", "RUNTIME_ERROR"),
    "cpu": ("while True: pass", "TIMEOUT_CPU"),
}


def answer_or_fail(call: ProgramCall) -> ToolResult:
    match call.args[0]:
        case 0:
            return ToolResult(error=ToolFault("QUOTA_EXCEEDED", "no"))
        case -1:
            raise RuntimeError("a bug of the host")
        case value:
            return ToolResult(value)


def test_every_outcome_reaches_its_own_session(engine: wasmtime.Engine, guest: PythonGuest):
    """Sessions with mixed ends on all threads, with fewer live instances than sessions."""
    limits = SessionLimits(cpu_ms=30, max_external_calls=8)
    sessions, rounds = 24, 12
    kinds = list(KINDS)
    with Sandbox(engine, [guest], KEY, live_max=8, threads_max=8) as sandbox:
        started: dict[tuple[int, int], Future[Outcome]] = {}
        for me in range(sessions):
            sandbox.create(str(me), seed=b"", now_ms=NOW_MS, tools=TOOLS, limits=limits)
        for n in range(rounds):
            for me in range(sessions):
                source, _ = KINDS[kinds[(me + n) % len(kinds)]]
                code = f"me, n = {me}, {n}\n{source}"
                request = RunRequest(session_id=str(me), code=code)
                started[me, n] = sandbox.submit(request, answer=answer_or_fail, now_ms=NOW_MS)
        assert not wait(started.values(), timeout=60).not_done
        for (me, n), future in started.items():
            outcome = future.result()
            assert isinstance(outcome, RunResult)
            _, code = KINDS[kinds[(me + n) % len(kinds)]]
            assert (outcome.error.code if outcome.error else None) == code, (me, n, outcome)
            assert outcome.result == (None if code else [me, n, 1])


def test_runs_of_one_session_take_turns_in_the_order_they_were_submitted(stage: Stage):
    stage.run("seen = []")
    futures = [
        stage.sandbox.submit(
            RunRequest(session_id=stage.name, code=f"seen.append({n})"), now_ms=NOW_MS
        )
        for n in range(20)
    ]
    wait(futures)
    assert stage.value("seen") == list(range(20))


def test_programs_really_run_at_the_same_time(sandbox: Sandbox):
    """Each run blocks in a tool until all runs have reached it."""
    together = threading.Barrier(4)

    def arrive(_call: ProgramCall) -> ToolResult:
        together.wait(90)
        return ToolResult(1)

    stages = [Stage(sandbox, f"together-{n}") for n in range(4)]
    futures = [
        sandbox.submit(
            RunRequest(session_id=stage.name, code="add(1)", limits=SessionLimits(wall_ms=20_000)),
            answer=arrive,
            now_ms=NOW_MS,
        )
        for stage in stages
    ]
    assert [future.result().result for future in futures] == [1] * 4
    for stage in stages:
        stage.end()


def test_more_sessions_than_instances_come_back_as_they_were(
    engine: wasmtime.Engine, guest: PythonGuest
):
    with Sandbox(engine, [guest], KEY, live_max=2, ready=1) as sandbox:
        stages = [Stage(sandbox, f"many-{n}") for n in range(8)]
        for n, stage in enumerate(stages):
            stage.run(f"def f(): return {n}\ng = iter(range(9))")
        for _ in range(2):
            for stage in stages:
                stage.run("next(g)")
        assert [stage.value("[f(), next(g)]") for stage in stages] == [[n, 2] for n in range(8)]
        waiting = [
            stage.wait("n = await approve(f())", answer=later("approve")) for stage in stages
        ]
        assert [w.calls[0].args for w in waiting] == [[n] for n in range(8)]
        for n, stage in enumerate(stages):
            assert stage.resume(n * n).status == "ok"
        assert [stage.value("n") for stage in stages] == [n * n for n in range(8)]


def test_memory_limits_the_live_sessions(engine: wasmtime.Engine, guest: PythonGuest):
    with Sandbox(engine, [guest], KEY, live_mb_max=100, ready=1) as sandbox:
        stages = [Stage(sandbox, f"big-{n}") for n in range(6)]
        for n, stage in enumerate(stages):
            stage.run(f"x = bytearray(30 << 20)\nx[-1] = {n}")
        assert [stage.value("[len(x) >> 20, x[-1]]") for stage in stages] == [
            [30, n] for n in range(6)
        ]


def test_a_long_history_becomes_an_image_and_nothing_is_lost(stage: Stage):
    stage.run("x = 0\ndef more():\n    global x; x += 1; return x")
    for n in range(120):
        assert stage.value("more()") == n + 1
    stage.run("while True: pass", limits={"cpu_ms": 30})
    assert stage.value("[x, more()]") == [120, 121]


def test_a_running_run_can_be_cancelled(stage: Stage):
    called = threading.Event()

    def answer(call: ProgramCall) -> ToolResult | None:
        called.set()
        return ANSWERS(call)

    stage.run("x = 1")
    request = RunRequest(
        session_id=stage.name,
        code="x = 2\nadd(1)\nwhile True: pass",
        limits=SessionLimits(cpu_ms=60_000, wall_ms=60_000),
    )
    future = stage.sandbox.submit(request, answer=answer, now_ms=NOW_MS)
    assert called.wait(90)
    assert stage.sandbox.cancel(stage.name) is None
    outcome = future.result()
    assert isinstance(outcome, RunResult)
    assert outcome.error is not None
    assert (outcome.status, outcome.error.code) == ("cancelled", "CANCELLED")
    assert stage.value("x") == 1


def test_a_run_in_a_tool_can_be_cancelled(stage: Stage):
    called, finish = threading.Event(), threading.Event()

    def answer(_call: ProgramCall) -> ToolResult:
        called.set()
        finish.wait(30)
        return ToolResult(1)

    request = RunRequest(session_id=stage.name, code="add(1)")
    future = stage.sandbox.submit(request, answer=answer, now_ms=NOW_MS)
    assert called.wait(90)
    stage.sandbox.cancel(stage.name)
    outcome = future.result(90)
    finish.set()
    assert isinstance(outcome, RunResult)
    assert outcome.status == "cancelled"
    assert stage.value("1") == 1


def test_a_suspended_run_can_be_cancelled(stage: Stage):
    stage.run("x = 1")
    stage.wait("x = 2\nadd(1)\nawait approve(1)", answer=later("approve"))
    outcome = stage.sandbox.cancel(stage.name)
    assert outcome is not None
    assert (outcome.status, len(outcome.external_calls)) == ("cancelled", 1)
    assert stage.value("x") == 1


def test_a_session_is_created_once_and_destroyed_for_good(sandbox: Sandbox):
    stage = Stage(sandbox, "once")
    with pytest.raises(Refused) as refused:
        sandbox.create("once", seed=b"", now_ms=NOW_MS)
    assert refused.value.code == "SESSION_IDENTITY_IN_USE"
    stage.run("x = 1", now_ms=NOW_MS + 5)
    (meta,) = [meta for meta in sandbox.sessions() if meta.id == "once"]
    assert (meta.created_at, meta.last_used_at) == (NOW_MS, NOW_MS + 5)
    sandbox.destroy("once")
    for use in (
        lambda: stage.run("1"),
        lambda: sandbox.destroy("once"),
        lambda: sandbox.resume("once"),
        lambda: sandbox.snapshot("once"),
        lambda: sandbox.cancel("once"),
    ):
        with pytest.raises(Refused) as refused:
            use()
        assert refused.value.code == "SESSION_NOT_FOUND"


def test_destroying_a_session_ends_its_run(sandbox: Sandbox):
    stage = Stage(sandbox, "ended")
    limits = SessionLimits(cpu_ms=60_000, wall_ms=60_000)
    request = RunRequest(session_id="ended", code="while True: pass", limits=limits)
    future = sandbox.submit(request, now_ms=NOW_MS)
    stage.end()
    outcome = future.result(90)
    assert isinstance(outcome, RunResult)
    assert outcome.status == "cancelled"


def test_a_suspended_run_refuses_a_second_run_and_unknown_results(stage: Stage):
    stage.wait("await approve(1)", answer=later("approve"))
    with pytest.raises(Refused) as refused:
        stage.run("1")
    assert refused.value.code == "GUARD_REJECTED"
    with pytest.raises(Refused) as refused:
        stage.resume(answers={7: ToolResult(1)})
    assert refused.value.code == "INPUT_NOT_FOUND"
    assert stage.resume("yes").result == "yes"
    with pytest.raises(Refused) as refused:
        stage.resume("again")
    assert refused.value.code == "GUARD_REJECTED"


def test_a_sandbox_that_closes_ends_what_runs(engine: wasmtime.Engine, guest: PythonGuest):
    sandbox = Sandbox(engine, [guest], KEY, ready=1)
    Stage(sandbox, "running")
    limits = SessionLimits(cpu_ms=60_000, wall_ms=60_000)
    request = RunRequest(session_id="running", code="while True: pass", limits=limits)
    future = sandbox.submit(request, now_ms=NOW_MS)
    sandbox.close()
    outcome = future.result(90)
    assert isinstance(outcome, RunResult)
    assert outcome.status == "cancelled"
    with pytest.raises(Refused) as refused:
        sandbox.submit(request, now_ms=NOW_MS)
    assert refused.value.code == "NODE_DRAINING"


def test_suspended_sessions_are_measured_and_the_longest_suspended_is_evicted_first(
    engine: wasmtime.Engine, guest: PythonGuest
):
    def spare_none(_name: str) -> bool:
        return False

    with Sandbox(engine, [guest], KEY, live_max=2, ready=1) as sandbox:
        stages = [Stage(sandbox, f"rests-{n}") for n in range(6)]
        names, fresh_bytes = [stage.name for stage in stages], sandbox.suspended_bytes
        for stage in stages:
            stage.run("x = list(range(50_000))\nfor n in range(500_000): pass")
        for name in names[1:4] + names[:1]:
            sandbox.snapshot(name)  # Also waits until the session is suspended.
        assert sandbox.eviction_candidates(0, spare_none) == [*names[1:4], names[0]]
        assert sandbox.eviction_candidates(0, names[2].__eq__) == [names[1], names[3], names[0]]
        four_bytes = sandbox.suspended_bytes
        assert four_bytes > 10 * fresh_bytes
        assert sandbox.eviction_candidates(four_bytes - 1, spare_none) == [names[1]]
        assert sandbox.eviction_candidates(four_bytes, spare_none) == []
        assert [stage.value("len(x)") for stage in stages] == [50_000] * 6, "nothing is lost"
        for stage in stages:
            stage.end()
        assert sandbox.suspended_bytes == 0


def test_a_snapshot_of_a_suspended_session_respects_the_limit_on_instances(
    engine: wasmtime.Engine, guest: PythonGuest
):
    """The snapshot repeats the runs in an instance, which counts as live."""
    with Sandbox(engine, [guest], KEY, live_max=1, ready=1) as sandbox:
        stages = [Stage(sandbox, f"kept-{n}") for n in range(4)]
        for stage in stages:
            stage.run("x = 1")
        sandbox.snapshot(stages[0].name)
        # Several threads suspend sessions: which one rests for longest is not the test's to say.
        assert sorted(sandbox.eviction_candidates(0, lambda name: False)) == [
            stage.name for stage in stages[1:]
        ]
