"""A mistake of a host, a tool or a hostile guest affects only its own run."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import wasmtime

from rookery.actors.sandbox import ProgramCall, Sandbox, Tool, ToolResult
from rookery.actors.sandbox.python.python_guest import PythonGuest
from rookery.schemas.errors import Refused
from rookery.schemas.run import RunRequest, RunResult, SessionLimits
from tests.sandbox.session_fixture import ANSWERS, KEY, NOW_MS, TOOLS, Stage, later

LARGE = 2**70
"""JSON holds it; msgpack does not."""


@pytest.mark.parametrize("call", ["add(1)", "await fetch(1)"])
@pytest.mark.parametrize("bug", [KeyboardInterrupt, SystemExit, RuntimeError])
def test_a_bug_of_the_host_ends_the_run_and_nothing_else(
    stage: Stage, call: str, bug: type[BaseException]
):
    def broken(_call: ProgramCall) -> ToolResult:
        raise bug("of the host")

    stage.run("x = 1")
    outcome = stage.run(f"x = 2\ntry: {call}\nexcept BaseException: pass", answer=broken)
    assert outcome.error is not None
    assert (outcome.error.code, bug.__name__ in outcome.error.message) == ("RUNTIME_ERROR", True)
    assert stage.value("[x, add(1)]") == [1, 1]


@pytest.mark.parametrize("call", ["add(1)", "await fetch(1)"])
def test_a_result_of_the_wrong_type_is_a_bug_of_the_host(stage: Stage, call: str):
    wrong: Any = lambda _call: 5  # noqa: E731 - a wrong type on purpose.
    assert stage.code(call, answer=wrong) == "RUNTIME_ERROR"
    assert stage.value("1") == 1


def test_a_replay_has_the_recorded_result_after_the_value_was_changed(
    stage: Stage, sandbox: Sandbox
):
    """A tool may change the value after it returned it."""
    rows = [1]
    stage.run("seen = add(1)", answer=lambda _call: ToolResult(rows))
    rows.append(2)
    assert stage.code("while True: pass", limits={"cpu_ms": 20}) == "TIMEOUT_CPU"
    assert stage.value("seen") == [1], "the run was run again with another answer"
    stage.wait("both = [add(1), write(2)]", lambda c: ToolResult(rows) if c.name == "add" else None)
    rows.append(3)
    assert stage.resume(answers={2: ToolResult(0)}).status == "ok"
    assert stage.value("both") == [[1, 2], 0]


@pytest.mark.parametrize(
    ("code", "number"),
    [("add(large)\n[large, write(large)]", 2), ("[large, await approve(large)]", 1)],
)
def test_a_suspended_run_with_integers_of_any_size_can_be_snapshotted(
    stage: Stage, sandbox: Sandbox, code: str, number: int
):
    def answer(call: ProgramCall) -> ToolResult | None:
        return ToolResult(LARGE) if call.name == "add" else None

    stage.wait(f"large = {LARGE}\n{code}", answer)
    taken = sandbox.snapshot(stage.name)
    stage.end()
    sandbox.restore(taken.data, tools=TOOLS)
    assert stage.resume(answers={number: ToolResult(LARGE)}).result == [LARGE, LARGE]


@pytest.mark.parametrize("call", ["add(%s)", "await fetch(%s)"])
def test_text_that_is_not_unicode_is_refused_where_the_program_sees_it(stage: Stage, call: str):
    caught = "try: %s\nexcept UnicodeEncodeError as e: x = e.reason\nx"
    outcome = stage.run(caught % (call % "'\\ud83d'"))
    assert (outcome.result, outcome.external_calls) == ("surrogates not allowed", ())
    assert stage.value("add('\\U0001f426', b='!')") == "\U0001f426!"


def test_a_forged_timer_is_only_a_long_one(stage: Stage):
    """asyncio's own are a day at most."""
    call = '{"id": 1, "name": "fetch", "args": [1], "kwargs": {}}'
    forged = f'{{"waits": {{"calls": [{call}], "outstanding": [1], "timer_s": 1e308}}}}'
    stage.run("import guest.app\nguest.app.encode = lambda _: forged", inputs={"forged": forged})
    waiting = stage.wait("1", answer=later("fetch"))
    assert waiting.timer_ms is not None
    assert waiting.timer_ms > 86_400_000
    assert stage.sandbox.cancel(stage.name) is not None


def test_a_stream_that_is_full_does_not_silence_the_other(stage: Stage):
    code = "import warnings\nprint('x' * 999)\nfor n in range(3): warnings.warn(f'w{n}')"
    outcome = stage.run(code, limits={"max_stdout_bytes": 200})
    assert (len(outcome.stdout), outcome.stderr.count("w0"), outcome.stderr.count("w1")) == (
        200,
        1,
        1,
    )
    (warning,) = outcome.diagnostics
    assert (outcome.status, warning.code) == ("ok", "STDOUT_EXCEEDED")


def test_no_output_follows_a_truncation(stage: Stage):
    """A program that ignores the reply of ``emit`` still adds no output after the gap."""
    code = "import wit_world\nfor text in ('aé', 'é', 'b'): wit_world.emit(1, text)"
    assert stage.run(code, limits={"max_stdout_bytes": 4}).stdout == "aé"


def test_a_cancelled_future_does_not_stop_its_run(stage: Stage, sandbox: Sandbox):
    """asyncio cancels a wrapped future when its task is cancelled."""
    called, finish = threading.Event(), threading.Event()

    def stuck(_call: ProgramCall) -> ToolResult:
        called.set()
        finish.wait(30)
        return ToolResult(1)

    limits = SessionLimits(wall_ms=100)
    request = RunRequest(session_id=stage.name, code="add(1)", limits=limits)
    future = sandbox.submit(request, answer=stuck, now_ms=NOW_MS)
    assert called.wait(90)
    assert not future.cancel()
    outcome = future.result(90)
    finish.set()
    assert isinstance(outcome, RunResult)
    assert outcome.status == "timeout"
    assert stage.code("while True: pass", limits={"wall_ms": 50}) == "TIMEOUT_WALL"


def test_a_refused_run_changes_nothing_of_what_the_session_offers(stage: Stage, sandbox: Sandbox):
    stage.wait("await approve(1)", answer=later("approve"))
    request = RunRequest(session_id=stage.name, code="1")
    with pytest.raises(Refused):
        sandbox.run(request, now_ms=NOW_MS, tools=[Tool(name="other")])
    assert stage.resume("yes").result == "yes"
    assert stage.value("add(1, b=2)") == 3


def test_two_sandboxes_of_one_process_are_separate(engine: wasmtime.Engine, guest: PythonGuest):
    """A tool of one sandbox runs a program of the other, on the same engine."""
    with (
        Sandbox(engine, [guest], KEY, ready=1) as one,
        Sandbox(engine, [guest], b"2", ready=1) as two,
    ):
        outer, inner = Stage(one, "same"), Stage(two, "same")
        outer.run("x = 'outer'")
        inner.run("x = 'inner'")

        def nested(call: ProgramCall) -> ToolResult:
            assert inner.code("while True: pass", limits={"cpu_ms": 20}) == "TIMEOUT_CPU"
            return ToolResult(inner.value(f"[x, add({call.args[0]})]"))

        assert outer.value("[x, add(7)]", answer=nested) == ["outer", ["inner", 7]]
        with pytest.raises(Refused) as refused:
            two.restore(one.snapshot("same").data, tools=TOOLS)
        assert refused.value.code == "SNAPSHOT_CORRUPT"
        one.close()
        assert inner.value("x") == "inner"


def test_a_tool_may_run_programs_of_its_own_sandbox(sandbox: Sandbox, stage: Stage):
    other = Stage(sandbox, stage.name + "-other")
    try:
        nested = stage.value("add(1)", answer=lambda _call: ToolResult(other.value("6 * 7")))
        assert nested == 42
    finally:
        other.end()


def test_closing_ends_runs_in_tools_running_runs_and_queued_runs(
    engine: wasmtime.Engine, guest: PythonGuest
):
    finish = threading.Event()

    def stuck(_call: ProgramCall) -> ToolResult:
        finish.wait(30)
        return ToolResult(1)

    sandbox = Sandbox(engine, [guest], KEY, ready=1, threads_max=2)
    limits = SessionLimits(cpu_ms=60_000, wall_ms=60_000)
    futures = []
    for n, code in enumerate(("add(1)", "while True: pass", "while True: pass", "add(1)")):
        Stage(sandbox, f"closing{n}")
        for _ in range(2):
            request = RunRequest(session_id=f"closing{n}", code=code, limits=limits)
            futures.append(sandbox.submit(request, answer=stuck, now_ms=NOW_MS))
    sandbox.close()
    for future in futures:
        outcome = future.result(0)
        assert isinstance(outcome, RunResult)
        assert outcome.status == "cancelled"
    finish.set()


def test_an_evicted_suspended_session_is_restored_once(engine: wasmtime.Engine, guest: PythonGuest):
    with Sandbox(engine, [guest], KEY, live_max=1, ready=1) as sandbox:
        first, second = Stage(sandbox, "first"), Stage(sandbox, "second")
        first.run("x = ['first']")
        first.wait("x.append(await approve(1))\nx", answer=later("approve"))
        for _ in range(3):
            assert second.value("add(1)", answer=ANSWERS) == 1
            sandbox.snapshot("first")
        assert first.resume("woken").status == "ok"
        assert first.value("x") == ["first", "woken"]


@pytest.mark.parametrize(
    ("limit", "value"), [("memory_mb", 1 << 32), ("max_stack_depth", 1 << 16), ("cpu_ms", 2**70)]
)
def test_limits_beyond_what_a_machine_could_count_are_refused(stage: Stage, limit: str, value: int):
    assert stage.code("1", limits={limit: value}) == "INVALID_ARGUMENT"
    assert stage.value("1", limits={limit: value // (1 << 40) or value - 1}) == 1
