"""Both languages in one sandbox: every outcome reaches its own session."""

from __future__ import annotations

from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import pytest
import wasmtime

from rookery.actors.sandbox import Outcome, Sandbox, ToolResult
from rookery.actors.sandbox.python.build import GuestCache
from rookery.actors.sandbox.python.python_guest import PythonGuest
from rookery.actors.sandbox.typescript.guest import JavaScriptGuest
from rookery.schemas.calls import ToolFault
from rookery.schemas.errors import Refused
from rookery.schemas.run import Language, RunRequest, RunResult, SessionLimits
from tests.sandbox.session_fixture import KEY, NOW_MS, TOOLS, Stage, later

KINDS: dict[str, tuple[str, Any]] = {
    "value": ("[me, n, add(1)]", None),
    "transformed": ("enum E { A = 1 }; [me, n, E.A]", None),
    "tool error": ("add(0)", "TOOL_ERROR"),
    "own error": ("null.x", "RUNTIME_ERROR"),
    "no program": ("let = = 1", "SYNTAX_ERROR"),
    "stack": ("const f = (): any => f(); f()", "STACK_OVERFLOW"),
    "memory": ("new Uint8Array(99 << 20)", "MEMORY_EXCEEDED"),
    "calls": ("for (let i = 0; i < 9; i++) add(1)", "EXTERNAL_CALLS_EXCEEDED"),
    "cpu": ("while (true);", "TIMEOUT_CPU"),
}


def answer_or_fail(call: Any) -> ToolResult:
    if call.args[0] == 0:
        return ToolResult(error=ToolFault("QUOTA_EXCEEDED", "no"))
    return ToolResult(call.args[0])


def test_every_outcome_reaches_its_own_session(
    engine: wasmtime.Engine, javascript_guest: JavaScriptGuest
):
    limits = SessionLimits(cpu_ms=60, max_external_calls=8)
    sessions, rounds = 12, 9
    kinds = list(KINDS)
    with Sandbox(engine, [javascript_guest], KEY, live_max=6, threads_max=8) as sandbox:
        started: dict[tuple[int, int], Future[Outcome]] = {}
        for me in range(sessions):
            language = Language.TYPESCRIPT
            name = str(me)
            sandbox.create(
                name, seed=b"", now_ms=NOW_MS, tools=TOOLS, limits=limits, language=language
            )
        for n in range(rounds):
            for me in range(sessions):
                source, _ = KINDS[kinds[(me + n) % len(kinds)]]
                code = f"const me = {me}, n = {n};\n{source}"
                request = RunRequest(session_id=str(me), code=code, language=Language.TYPESCRIPT)
                started[me, n] = sandbox.submit(request, answer=answer_or_fail, now_ms=NOW_MS)
        assert not wait(started.values(), timeout=60).not_done
        for (me, n), future in started.items():
            outcome = future.result()
            assert isinstance(outcome, RunResult)
            _, code = KINDS[kinds[(me + n) % len(kinds)]]
            assert (outcome.error.code if outcome.error else None) == code, (me, n, outcome)
            assert outcome.result == (None if code else [me, n, 1])


def test_more_sessions_than_instances_come_back_as_they_were(
    engine: wasmtime.Engine, javascript_guest: JavaScriptGuest
):
    with Sandbox(engine, [javascript_guest], KEY, live_max=2, ready=1) as sandbox:
        stages = [Stage(sandbox, f"many-{n}", language=Language.TYPESCRIPT) for n in range(6)]
        for n, stage in enumerate(stages):
            stage.run(f"const f = () => {n}; const g = [0, 1, 2].values()")
        for stage in stages:
            stage.run("g.next()")
        assert [stage.value("[f(), g.next().value]") for stage in stages] == [
            [n, 1] for n in range(6)
        ]
        for stage in stages:
            stage.wait("const n = await approve(f())", answer=later("approve"))
        for n, stage in enumerate(stages):
            assert stage.resume(n * n).status == "ok"
        assert [stage.value("n") for stage in stages] == [n * n for n in range(6)]


def test_nothing_of_typescript_is_compiled_for_python_sessions(
    engine: wasmtime.Engine, guest: PythonGuest, tmp_path: Path
):
    messages: list[str] = []
    javascript = JavaScriptGuest(engine, GuestCache(tmp_path / "cache", messages.append))
    with Sandbox(engine, [guest, javascript], KEY, ready=1) as sandbox:
        stage = Stage(sandbox, "python")
        assert stage.value("1 + 1") == 2
        assert sandbox.snapshot(stage.name).id
    assert messages == []


def test_sessions_of_both_languages_live_in_one_sandbox(
    engine: wasmtime.Engine, guest: PythonGuest, javascript_guest: JavaScriptGuest
):
    with Sandbox(engine, [guest, javascript_guest], KEY, ready=1) as sandbox:
        python = Stage(sandbox, "python")
        typescript = Stage(sandbox, "typescript", language=Language.TYPESCRIPT)
        assert python.value("x = 1\nx + 1") == 2
        assert typescript.value("const x: number = 2; x + 1") == 3
        assert [python.value("x"), typescript.value("x")] == [1, 2]
        outcome = typescript.run("1", language=Language.PYTHON)
        assert outcome.error is not None
        assert outcome.error.code == "UNSUPPORTED_FEATURE"


def test_a_snapshot_fits_the_guest_it_was_taken_from(
    sandbox: Sandbox, ts_sandbox: Sandbox, ts: Stage
):
    ts.run("const x = 1")
    taken = ts_sandbox.snapshot(ts.name)
    with pytest.raises(Refused) as refused:
        sandbox.restore(taken.data, tools=TOOLS)
    assert refused.value.code == "SNAPSHOT_FOREIGN_BUILD"
    assert ts_sandbox.restore(taken.data, tools=TOOLS, session_id="other") == "other"
    other = Stage(ts_sandbox, "other", create=False, language=Language.TYPESCRIPT)
    assert other.value("x") == 1
    other.end()
