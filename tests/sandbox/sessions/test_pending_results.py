"""Programs wait for pending results of synchronous calls: on fibers, and blocking threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rookery.actors.sandbox import Sandbox, SuspendedRun, ToolResult
from rookery.actors.sandbox.python.build import GuestCache
from rookery.actors.sandbox.python.python_guest import PythonGuest
from rookery.actors.sandbox.runtime.wasm import make_engine
from rookery.actors.sandbox.typescript.guest import JavaScriptGuest
from rookery.schemas.run import CallStatus, Language, SessionLimits
from tests.sandbox.desk import EVERY_LANGUAGE, LONG, PATIENCE_S, Desk, submitted
from tests.sandbox.session_fixture import KEY, TOOLS, Stage


@pytest.fixture(scope="module", params=["fibers", "threads"])
def any_sandbox(request: pytest.FixtureRequest, cache: GuestCache) -> Iterator[Sandbox]:
    engine = make_engine(has_fibers=request.param == "fibers")
    with Sandbox(engine, [PythonGuest(engine, cache), JavaScriptGuest(engine, cache)], KEY) as made:
        yield made


@pytest.fixture
def any_stage(any_sandbox: Sandbox, language: Language) -> Iterator[Stage]:
    stage = Stage(any_sandbox, f"waiting-{language}", language=language)
    yield stage
    stage.end()


@EVERY_LANGUAGE
def test_a_program_continues_with_each_result(any_stage: Stage):
    desk = Desk()
    run = submitted(any_stage, desk)
    for number in range(5):
        call, result = desk.next()
        assert (call.id, call.args) == (number + 1, [number])
        result.set_result(ToolResult(number * 10))
    outcome = run.result(PATIENCE_S)
    assert outcome.result == 100
    assert len(outcome.external_calls) == 5


@EVERY_LANGUAGE
def test_a_pending_call_without_a_result_suspends_the_run(any_stage: Stage):
    """The run is parked as if the call had not been answered, and goes on after a restore."""
    desk = Desk()
    run = submitted(any_stage, desk)
    desk.answer(2)
    desk.next()[1].set_result(None)
    outcome = run.result(PATIENCE_S)
    assert isinstance(outcome, SuspendedRun)
    assert [call.id for call in outcome.calls] == [3]
    data = any_stage.sandbox.snapshot(any_stage.name).data
    any_stage.end()
    any_stage.sandbox.restore(data, tools=TOOLS)
    resumed = any_stage.sandbox.submit_resume(any_stage.name, {3: ToolResult(1)}, answer=desk)
    desk.answer(2)
    assert resumed.result(PATIENCE_S).result == 5


@EVERY_LANGUAGE
@pytest.mark.parametrize("how", ["error", "cancelled"])
def test_a_pending_call_that_fails_or_is_cancelled(any_stage: Stage, how: str):
    """An error is a fault of the host; a cancelled result suspends the run."""
    desk = Desk()
    run = submitted(any_stage, desk)
    result = desk.next()[1]
    if how == "cancelled":
        assert result.cancel()
        assert isinstance(run.result(PATIENCE_S), SuspendedRun)
        return
    result.set_exception(LookupError("no such shop"))
    error = run.result(PATIENCE_S).error
    assert error.code == "RUNTIME_ERROR"
    assert "no such shop" in error.message


@EVERY_LANGUAGE
def test_a_run_is_cancelled_while_it_waits(any_stage: Stage):
    desk = Desk()
    any_stage.run("x = 1" if any_stage.language is Language.PYTHON else "let x = 1")
    run = submitted(any_stage, desk, limits=LONG)
    late = desk.next()[1]
    assert any_stage.sandbox.cancel(any_stage.name) is None
    outcome = run.result(PATIENCE_S)
    assert (outcome.status, outcome.error.code) == ("cancelled", "CANCELLED")
    late.set_result(ToolResult("late"))
    assert any_stage.value("x") == 1


@EVERY_LANGUAGE
def test_wall_time_ends_a_run_that_waits(any_stage: Stage):
    desk = Desk()
    run = submitted(any_stage, desk, limits=SessionLimits(wall_ms=300))
    outcome = run.result(PATIENCE_S)
    assert outcome.error.code == "TIMEOUT_WALL"
    (record,) = outcome.external_calls
    assert record.status == CallStatus.TIMEOUT
    desk.next()[1].set_result(ToolResult("late"))
    assert any_stage.value("1 + 1") == 2


@EVERY_LANGUAGE
def test_a_session_is_destroyed_while_its_run_waits(any_stage: Stage):
    desk = Desk()
    run = submitted(any_stage, desk, limits=LONG)
    desk.next()
    any_stage.sandbox.destroy(any_stage.name)
    assert run.result(PATIENCE_S).error.code == "CANCELLED"
