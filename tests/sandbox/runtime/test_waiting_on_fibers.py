"""Programs that wait on fibers: how many, where, and what they leave.

These tests are collected where fibers can be.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future

import pytest

from rookery.actors.sandbox import PendingResult, ProgramCall, Sandbox, ToolResult
from rookery.actors.sandbox.python.build import GuestCache
from rookery.actors.sandbox.python.python_guest import PythonGuest
from rookery.actors.sandbox.runtime.wasm import Engine, make_engine
from rookery.actors.sandbox.typescript.guest import JavaScriptGuest
from rookery.schemas.run import Language, SessionLimits
from tests.sandbox.desk import EVERY_LANGUAGE, LONG, PATIENCE_S, Desk, submitted
from tests.sandbox.programs import without_time
from tests.sandbox.session_fixture import KEY, Stage


@pytest.fixture(scope="module")
def fiber_engine() -> Engine:
    return make_engine()


@EVERY_LANGUAGE
def test_results_fuel_and_memory_do_not_depend_on_the_mode(
    fiber_engine: Engine, cache: GuestCache, language: Language
):
    found = []
    for engine in (fiber_engine, make_engine(has_fibers=False)):
        guests = [PythonGuest(engine, cache), JavaScriptGuest(engine, cache)]
        with Sandbox(engine, guests, KEY) as sandbox:
            stage, desk = Stage(sandbox, "same", language=language), Desk()
            run = submitted(stage, desk)
            for _ in range(5):
                desk.next()[1].set_result(ToolResult(2, duration_ms=1))
            outcome = without_time(run.result(PATIENCE_S))
            stage.value("x.length" if language is Language.TYPESCRIPT else "len(x)")
            (_, session), *_ = sandbox._sessions.all()
            assert session.instance is not None
            image = session.instance.copy_memory()()
            found.append((outcome, image))
    assert found[0] == found[1]


@EVERY_LANGUAGE
def test_closing_ends_the_runs_that_wait(
    fiber_engine: Engine, cache: GuestCache, language: Language
):
    guests = [PythonGuest(fiber_engine, cache), JavaScriptGuest(fiber_engine, cache)]
    with Sandbox(fiber_engine, guests, KEY) as sandbox:
        desk, runs = Desk(), []
        for number in range(4):
            stage = Stage(sandbox, f"open-{number}", language=language)
            runs.append(submitted(stage, desk, limits=LONG))
            desk.next()
    assert [run.result(0).error.code for run in runs] == ["CANCELLED"] * 4


@pytest.mark.parametrize("count", [1_000])
def test_a_thousand_programs_wait_without_a_thread_each(
    fiber_engine: Engine, cache: GuestCache, count: int
):
    before = threading.active_count()
    with Sandbox(fiber_engine, [PythonGuest(fiber_engine, cache)], KEY, threads_max=4) as sandbox:
        desk = Desk()
        runs = [
            submitted(Stage(sandbox, f"many-{n}"), desk, "add(1)", limits=LONG)
            for n in range(count)
        ]
        waiting = [desk.next()[1] for _ in range(count)]
        # The watchdog may allow an extra thread for a guest that it meets on its way into a wait.
        assert threading.active_count() - before < 20 < count
        for result in waiting:
            result.set_result(ToolResult(7))
        assert [run.result(PATIENCE_S).result for run in runs] == [7] * count


def test_programs_that_wait_hold_no_more_memory_than_allowed(
    fiber_engine: Engine, cache: GuestCache
):
    """Others begin when these continue; a cancelled one ends although it may not begin."""
    desk = Desk()
    with Sandbox(fiber_engine, [PythonGuest(fiber_engine, cache)], KEY, live_mb_max=9) as sandbox:
        runs = []
        for number in range(5):
            runs.append(submitted(Stage(sandbox, f"held-{number}"), desk, "add(1)", limits=LONG))
            desk.next()
        deadline_s = time.monotonic() + PATIENCE_S
        while len(sandbox._queues.waiting()) < 5:
            assert time.monotonic() < deadline_s
            time.sleep(0.001)
        late = submitted(Stage(sandbox, "late"), desk, "add(1)", limits=LONG)
        never = submitted(Stage(sandbox, "never"), desk, "add(1)", limits=LONG)
        sandbox.destroy("never")
        assert never.result(PATIENCE_S).error.code == "CANCELLED"
        assert not late.done()
        assert desk.calls == []
        sandbox.destroy("held-0")
        assert runs[0].result(PATIENCE_S).error.code == "CANCELLED"
        desk.answer(1, 3)
        assert late.result(PATIENCE_S).result == 3


@EVERY_LANGUAGE
def test_a_thread_that_must_not_block_executes_slices_only(
    fiber_engine: Engine, cache: GuestCache, language: Language
):
    """A run may begin on the thread that submits it, which goes on although the program computes
    without end."""
    endless = {Language.PYTHON: "while True: pass", Language.TYPESCRIPT: "while (true);"}
    begun_on: list[threading.Thread] = []

    def answer(_call: ProgramCall) -> PendingResult:
        begun_on.append(threading.current_thread())
        result: PendingResult = Future()
        result.set_result(ToolResult(1))
        return result

    guests = [PythonGuest(fiber_engine, cache), JavaScriptGuest(fiber_engine, cache)]
    with Sandbox(fiber_engine, guests, KEY) as sandbox:
        stage = Stage(sandbox, "home", language=language)
        deadline_s = time.monotonic() + PATIENCE_S
        while threading.current_thread() not in begun_on:  # It may still be busy with the last run.
            assert time.monotonic() < deadline_s
            assert submitted(stage, answer, "add(1)", here=True).result(PATIENCE_S).result == 1
        limits = SessionLimits(cpu_ms=200, wall_ms=60_000)
        run = submitted(stage, answer, endless[language], limits=limits, here=True)
        assert run.result(PATIENCE_S).error.code == "TIMEOUT_CPU"


@EVERY_LANGUAGE
def test_a_finalizer_that_calls_a_tool_does_no_harm(
    fiber_engine: Engine, cache: GuestCache, language: Language
):
    """Wherever the interpreter runs it, even after the program's end."""
    code = {
        Language.PYTHON: "class A:\n    def __del__(self): add(1)\na = A()\na.me = a\n"
        "result = {'x': [1] * 10}\ndel a\nA() and result",
        Language.TYPESCRIPT: "String.prototype.replace = () => ({ toString() { return add(1) } });"
        "String.prototype.isWellFormed = () => false; console.log('x');"
        "const o: any = { get y() { return add(1) }, toJSON() { return add(1) } }; o",
    }
    guests = [PythonGuest(fiber_engine, cache), JavaScriptGuest(fiber_engine, cache)]
    with Sandbox(fiber_engine, guests, KEY) as sandbox:
        for number in range(3):
            stage = Stage(sandbox, f"final-{number}", language=language)
            for _ in range(3):
                outcome = stage.run(code[language], answer=lambda _call: ToolResult(1))
                assert outcome.metrics.external_calls_count > 0
